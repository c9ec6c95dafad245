"""Reads the evidence of finished stages from a store, which may be an unpacked bundle."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from eval_gates.speed.load_run import LOADS, LoadRun, read_loads
from pipeline.core.digest import digest_file
from pipeline.core.errors import EvidenceError
from pipeline.core.stage_key import stage_key
from pipeline.core.stage_record import StageRecord
from pipeline.core.store import Store
from pipeline.core.untrusted.lines import UntrustedLinesError
from pipeline.core.untrusted.rows import read_flat_rows
from pipeline.stages import newest_revision


class Evidence:
    """Records and files of stages.

    Args:
        store: that has them.
        bundle: the bundle that was unpacked to it; None for a store of runs, in which users may
            have deleted stages.
        has_answers: whether the files of stages are there.
    """

    def __init__(
        self, store: Store, bundle: Path | None = None, *, has_answers: bool = True
    ) -> None:
        self._store = store
        self._bundle = bundle
        self.has_answers = has_answers

    @property
    def is_whole(self) -> bool:
        """Whether every stage that the evidence depends on must exist."""
        return self._bundle is not None

    def find(self, stage: str, key: str) -> StageRecord | None:
        """Return a stage's record, or None; raises StoreError if it is damaged."""
        return self._store.find(stage, key)

    def digest(self, stage: str, key: str, name: str) -> str | None:
        """Return the digest of a stage's file, or None if it is missing."""
        file = self._store.stage_folder(stage, key) / name
        return digest_file(file) if file.is_file() else None

    def rows(self, stage: str, key: str, name: str) -> Iterator[dict[str, Any]]:
        """Yield the JSON objects of a stage's file of lines, without nested values.

        Raises:
            EvidenceError: the file is missing or damaged; also during iteration.
        """
        try:
            yield from read_flat_rows(self._store.stage_folder(stage, key) / name)
        except (OSError, UntrustedLinesError) as error:
            raise self._unreadable_error(stage, key, name, error) from error

    def loads(self, stage: str, key: str) -> list[LoadRun]:
        """Return the stage's loads; raises EvidenceError if they are missing or damaged."""
        try:
            return read_loads(self._store.stage_folder(stage, key) / LOADS)
        except (OSError, ValueError) as error:
            raise self._unreadable_error(stage, key, LOADS, error) from error

    def place(self, stage: str, key: str) -> str:
        """Location of the stage, for messages."""
        if self._bundle is not None:
            return f"{self._bundle.name}: stages/{stage}/{key}"
        return str(self._store.stage_folder(stage, key))

    def key_of(self, record: StageRecord) -> str:
        """Return the key computed from the record's inputs."""
        revision = newest_revision(record.stage)
        return stage_key(record.stage, revision, record.parameters, record.inputs)

    def _unreadable_error(self, stage: str, key: str, name: str, error: Exception) -> EvidenceError:
        why = getattr(error, "strerror", None) or error
        where = f"{self.place(stage, key)}/{name}"
        return EvidenceError(f"a file is gone or damaged: {why}", where=where)
