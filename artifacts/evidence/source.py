"""Source of kept evidence: the store of a run, or a bundle made from it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from eval_gates.answer_log import parse_answers
from eval_gates.speed.load_run import LOADS, LoadRun, read_loads
from pipeline.core.digest import digest_file
from pipeline.core.errors import StoreError
from pipeline.core.stage_key import stage_key
from pipeline.core.stage_record import StageRecord
from pipeline.core.store import Store
from pipeline.core.untrusted.rows import without_nested
from pipeline.stages import newest_revision


class EvidenceSource(Protocol):
    """Records and files of finished stages."""

    @property
    def is_whole(self) -> bool:
        """Whether every stage that the evidence depends on must exist."""

    def find(self, stage: str, key: str) -> StageRecord | None:
        """Return a stage's record, or None; raises PrepareError if it is damaged."""

    def digest(self, stage: str, key: str, name: str) -> str | None:
        """Return the digest of a stage's file, or None; raises PrepareError if it is damaged."""

    def rows(self, stage: str, key: str, name: str) -> Iterator[dict[str, Any]]:
        """Yield the JSON objects of a stage's file of lines, without nested values.

        Raises:
            PrepareError: the file is missing or damaged; also during iteration.
        """

    def loads(self, stage: str, key: str) -> list[LoadRun]:
        """Return the stage's loads; raises PrepareError if they are missing or damaged."""

    def place(self, stage: str, key: str) -> str:
        """Location of the stage, for messages."""

    def key_of(self, record: StageRecord) -> str:
        """Return the key computed from the record's inputs."""


class StoredEvidence:
    """Evidence in a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def is_whole(self) -> bool:
        """False, because users may delete stages."""
        return False

    def find(self, stage: str, key: str) -> StageRecord | None:
        return self._store.find(stage, key)

    def digest(self, stage: str, key: str, name: str) -> str | None:
        file = self._store.stage_folder(stage, key) / name
        return digest_file(file) if file.is_file() else None

    def rows(self, stage: str, key: str, name: str) -> Iterator[dict[str, Any]]:
        file = self._store.stage_folder(stage, key) / name
        try:
            return map(without_nested, parse_answers(file.read_bytes()))
        except (OSError, ValueError) as error:
            raise StoreError("a file of a stage is gone or damaged", where=str(file)) from error

    def loads(self, stage: str, key: str) -> list[LoadRun]:
        file = self._store.stage_folder(stage, key) / LOADS
        try:
            return read_loads(file)
        except (OSError, ValueError) as error:
            raise StoreError("measured loads are gone or damaged", where=str(file)) from error

    def place(self, stage: str, key: str) -> str:
        return str(self._store.stage_folder(stage, key))

    def key_of(self, record: StageRecord) -> str:
        revision = newest_revision(record.stage)
        return stage_key(record.stage, revision, record.parameters, record.inputs)
