"""A run's checkpoints, each read once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from recipes.checkpoints.checkpoint import Checkpoint, read_folder
from recipes.checkpoints.hub_headers import read_hub
from recipes.checkpoints.reference import CheckpointReference


class Checkpoints:
    """Checkpoints by reference, each read once."""

    def __init__(self) -> None:
        self._read: dict[str, Checkpoint] = {}

    def read(self, reference: CheckpointReference, made: Path | None = None) -> Checkpoint:
        """Read config.json, headers and small files.

        `made` is the folder of a demo. CheckpointError: missing or damaged.
        """
        text = reference.text
        if text not in self._read:
            if reference.kind == "hub":
                self._read[text] = read_hub(reference.name, reference.revision)
            else:
                folder = made or Path(reference.name).expanduser()
                self._read[text] = read_folder(folder, text, reference.kind)
        return self._read[text]

    def downloaded(self, reference: CheckpointReference, folder: Path, revision: str) -> Checkpoint:
        """Return a Hub's checkpoint in its snapshot; only headers are read again.

        Another commit than that of the headers is read as a whole.
        """
        known = self._read.get(reference.text)
        small = None
        if known is not None and known.here == folder:
            return known
        if known is not None and known.revision == revision:
            small = known.small.moved_to(folder)
        checkpoint = read_folder(folder, reference.text, "hub", small)
        self._read[reference.text] = replace(checkpoint, revision=revision)
        return self._read[reference.text]
