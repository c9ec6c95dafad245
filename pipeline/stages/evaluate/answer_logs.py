"""A store's answer logs, by the names of their files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.core.private_files import make_folder, private_umask
from pipeline.core.store import Store

FOLDER = "answers"
FIRST = "000000-00000000-00000000.jsonl"
"""A log's first part, without rows: an empty log is not a lost one."""


def book_file(store: Store, key: str) -> Path:
    """Return the path from which the names of the log's parts follow."""
    return store.root / FOLDER / f"{key}.jsonl"


@contextmanager
def open_book(store: Store, book: Path, waits: Callable[[str], None]) -> Iterator[None]:
    """Hold a log exclusively to append to it."""
    with store.hold(book.stem, waits):
        make_folder(book.parent)
        yield


def begin_log(store: Store, key: str) -> None:
    """Create an empty log, unless there is one."""
    if not any((store.root / FOLDER).glob(f"{key}.*")):
        folder = store.root / FOLDER
        store.make_root()
        make_folder(folder)
        with private_umask(folder):
            (folder / f"{key}.{FIRST}").touch()
