"""Files of a store's answer logs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.core.private_files import make_folder
from pipeline.core.store import Store

FOLDER = "answers"


def book_file(store: Store, key: str) -> Path:
    """Return the path from which the parts' names follow."""
    return store.root / FOLDER / f"{key}.jsonl"


@contextmanager
def open_book(store: Store, book: Path, waits: Callable[[str], None]) -> Iterator[None]:
    """Hold a log exclusively."""
    with store.hold(book.stem, waits):
        make_folder(book.parent)
        yield
