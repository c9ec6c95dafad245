"""A store's answer logs, by the names of their files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.core.leases import Lease
from pipeline.core.private_files import make_folder
from pipeline.core.store import Store

FOLDER = "answers"
FIRST = "000000-00000000-00000000.jsonl"
"""The part without rows that a log begins with: one that was begun and is empty is not lost."""


def book_file(store: Store, key: str) -> Path:
    """Return the path that the names of the log's parts follow from."""
    return store.root / FOLDER / f"{key}.jsonl"


@contextmanager
def open_book(store: Store, book: Path, waits: Callable[[str], None]) -> Iterator[Lease]:
    """Hold a log exclusively to append to it."""
    with store.hold(book.stem, waits) as claim:
        make_folder(book.parent)
        yield claim


def has_log(store: Store, key: str) -> bool:
    """Return whether the store has the log; gc or a user may have removed it."""
    return any(name.startswith(f"{key}.") for name in store.key_value_store(FOLDER).names(""))


def begin_log(store: Store, key: str) -> None:
    """Create an empty log, unless there is one."""
    if not has_log(store, key):
        store.key_value_store(FOLDER).put_if_absent(f"{key}.{FIRST}", b"")
