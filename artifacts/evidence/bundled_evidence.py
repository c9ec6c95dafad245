"""Reads stages from an evidence bundle, as `recompute` reads them from a store."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from artifacts.evidence.manifest import Manifest
from pipeline.core.errors import EvidenceError
from pipeline.core.stage_key import REVISIONS, stage_key
from pipeline.core.stage_record import StageRecord
from pipeline.core.store import RECORD

LARGEST_FILE = 4 * 1024**3  # bytes unpacked; more is no evidence but an attack on who reads it


class BundledEvidence:
    """Evidence as it lies in a bundle; a source for `artifacts.evidence.recompute`.

    Only what the manifest lists is read.

    Args:
        folder: of the bundle.
        manifest: of it.
        revisions: of the stages' code, as the bundle's verdict names them.

    Raises:
        EvidenceError: a newer prepare made it.
    """

    def __init__(
        self, folder: Path, manifest: Manifest, revisions: Mapping[str, tuple[int, ...]]
    ) -> None:
        self._folder = folder
        self._listed = {each.path for each in manifest.bundle}
        self._revisions = revisions
        for stage, numbers in revisions.items():
            if not set(numbers) <= set(range(1, newest_revision(stage) + 1)):
                raise EvidenceError(
                    f"its stage '{stage}' is of a revision that this prepare does not know",
                    where=str(folder),
                    cure="it was changed, or a newer prepare made it: verify it with that",
                )

    @property
    def is_whole(self) -> bool:
        """A bundle has every stage that its verdict rests on."""
        return True

    def find(self, stage: str, key: str) -> StageRecord | None:
        """The record of a stage; raises EvidenceError when it is damaged."""
        path = f"{place_of(stage, key)}/{RECORD}"
        content = self._read(path)
        if content is None:
            return None
        try:
            record = StageRecord.model_validate_json(content)
        except ValueError as error:
            raise EvidenceError(
                "a stage's record is damaged", where=str(self._folder / path)
            ) from error
        if (record.stage, record.key) != (stage, key):
            raise EvidenceError("a stage's record is another's", where=str(self._folder / path))
        return record

    def content(self, stage: str, key: str, name: str) -> bytes | None:
        """A file of that stage, unpacked; raises EvidenceError when it is damaged."""
        path = f"{place_of(stage, key)}/{name}.gz"
        content = self._read(path)
        if content is None:
            return None
        unpacking = zlib.decompressobj(wbits=31)
        try:
            found = unpacking.decompress(content, LARGEST_FILE)
        except zlib.error as error:
            raise EvidenceError("a file is damaged", where=str(self._folder / path)) from error
        if not unpacking.eof or unpacking.unused_data:
            raise EvidenceError("a file is damaged", where=str(self._folder / path))
        return found

    def place(self, stage: str, key: str) -> str:
        """The stage's folder, as seen from the bundle's."""
        return f"{self._folder.name}/{place_of(stage, key)}"

    def key_of(self, record: StageRecord) -> str:
        """By the revision of the code that the stage was run by; '' when none gives its key."""
        revisions = self._revisions.get(record.stage, ())
        return record.key if revision_of(record, revisions) is not None else ""

    def _read(self, path: str) -> bytes | None:
        if path not in self._listed:
            return None
        try:
            return (self._folder / path).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise EvidenceError(
                f"a file cannot be read: {error.strerror}", where=str(self._folder / path)
            ) from error


def revision_of(record: StageRecord, revisions: Iterable[int]) -> int | None:
    """The revision of the stage's code that gives the record's key; None when none of them does."""
    for revision in revisions:
        if stage_key(record.stage, record.parameters, record.inputs, revision) == record.key:
            return revision
    return None


def newest_revision(stage: str) -> int:
    """The revision of a stage's code that is here; 0 of a stage that there is none of."""
    return REVISIONS.get(stage, 0)


def place_of(stage: str, key: str) -> str:
    """A stage's folder, as seen from the bundle's."""
    return f"stages/{stage}/{key}"
