"""A store's answer logs, by the names of their files."""

from __future__ import annotations

from pipeline.core.store import Store

FOLDER = "answers"
FIRST = "000000-00000000-00000000.jsonl"
"""The part without rows that a log begins with: one that was begun and is empty is not lost."""


def has_log(store: Store, key: str) -> bool:
    """Return whether the store has the log; gc or a user may have removed it."""
    return any(name.startswith(f"{key}.") for name in store.key_value_store(FOLDER).names(""))


def begin_log(store: Store, key: str) -> None:
    """Create an empty log, unless there is one."""
    if not has_log(store, key):
        store.key_value_store(FOLDER).put_if_absent(f"{key}.{FIRST}", b"")
