"""Records of finished stages, as a stage would leave them, for tests that need one in a store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prepare.private_files import write_atomically
from prepare.stage import StageRecord
from prepare.store import PARTIAL, RECORD, Store


def stage_record(**changes: Any) -> StageRecord:
    """The record of a judge stage; any field can be another."""
    fields: dict[str, Any] = {
        "stage": "judge",
        "variant": "fp8-dynamic",
        "key": "abc",
        "parameters": {"alpha": 0.05},
        "inputs": {"weights": {"stage": "quantize", "key": "def"}},
        "input_digests": {"weights": "0" * 64},
        "result": {"verdict": "pass"},
        "notes": ["a note"],
        "seconds": 1.5,
        "finished": "2026-11-21T10:00:00+00:00",
    }
    return StageRecord.model_validate(fields | changes)


def put_record(store: Store, record: StageRecord) -> None:
    """Lay the record into its folder, next to outputs that a test put there."""
    folder = store.stage_folder(record.stage, record.key)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / RECORD, record.model_dump_json())


def unfinished_folder(store: Store, stage: str, key: str) -> Path:
    """What a try left that wrote last, or where none is."""
    final = store.stage_folder(stage, key)
    found = sorted(final.parent.glob(f"{key}.*{PARTIAL}*"), key=lambda each: each.stat().st_mtime)
    return found[-1] if found else final.with_name(f"{key}{PARTIAL}")
