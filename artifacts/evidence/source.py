"""Where kept evidence is read from: the store that a run left, or a bundle made from it.

Both hold records of stages by key, and those stages' files. What judges them (`recompute.py`)
does not know which of the two it reads.
"""

from __future__ import annotations

from typing import Protocol

from pipeline.core.stage_key import stage_key
from pipeline.core.stage_record import StageRecord
from pipeline.core.store import Store


class EvidenceSource(Protocol):
    """Records and files of finished stages."""

    @property
    def is_whole(self) -> bool:
        """Whether every stage that the evidence rests on must be there, and none may be gone."""

    def find(self, stage: str, key: str) -> StageRecord | None:
        """The record of a stage, None when it is not there; raises PrepareError when damaged."""

    def content(self, stage: str, key: str, name: str) -> bytes | None:
        """A file of that stage, None when it is not there; raises PrepareError when damaged."""

    def place(self, stage: str, key: str) -> str:
        """Where that stage lies, for messages."""

    def key_of(self, record: StageRecord) -> str:
        """The key that follows from what the record says went into its stage."""


class StoredEvidence:
    """Evidence as it lies in a store.

    Args:
        store: of the run.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def is_whole(self) -> bool:
        """Stages may be deleted by hand; of what is not there nothing is known."""
        return False

    def find(self, stage: str, key: str) -> StageRecord | None:
        """The record of a stage; raises StoreError when it is damaged."""
        return self._store.find(stage, key)

    def content(self, stage: str, key: str, name: str) -> bytes | None:
        """A file of that stage."""
        file = self._store.stage_folder(stage, key) / name
        return file.read_bytes() if file.is_file() else None

    def place(self, stage: str, key: str) -> str:
        """The stage's folder."""
        return str(self._store.stage_folder(stage, key))

    def key_of(self, record: StageRecord) -> str:
        """By the code that is here."""
        return stage_key(record.stage, record.parameters, record.inputs)
