"""Answer books as all who share a store see them.

In a folder that is shared a book's files are there for all. Of a store in an object store they are
copied: rows that were added here go there as objects of their own, every few seconds, and rows of
others come here when a book is looked into.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from eval_gates.answers import parts_of
from pipeline.core.claims import Claim
from pipeline.core.errors import StoreError
from pipeline.core.object_store import ObjectStore
from pipeline.core.private_files import make_folder
from pipeline.core.store import Store

FOLDER = "answers"
SENT_EVERY_SECONDS = 5.0


def book_file(store: Store, key: str) -> Path:
    """The book's name, with what others have added to it by now."""
    book = store.root / FOLDER / f"{key}.jsonl"
    if store.origin is not None:
        writers = {part.writer for part in parts_of(book) if not part.rows}
        names = [n for n in store.origin.objects.names(FOLDER) if n.startswith(f"{key}.")]
        # What was written here is here, and may have more rows than were sent.
        others = [name for name in names if _writer(name) not in writers]
        store.origin.fetch_parts(FOLDER, others)
    return book


@contextmanager
def open_book(store: Store, book: Path, waits: Callable[[str], None]) -> Iterator[Claim]:
    """Have a book to oneself, to add to it; what is added is sent to others meanwhile."""
    with store.hold(book.stem, waits) as claim:
        make_folder(book.parent)
        if store.origin is None:
            yield claim
            return
        book_file(store, book.stem)  # what others have added while we waited
        objects, over = store.origin.objects.below(FOLDER), threading.Event()

        def send_now_and_then() -> None:
            while not over.wait(SENT_EVERY_SECONDS):
                with suppress(StoreError):  # at the end it is tried once more
                    send_rows(objects, book)

        sending = threading.Thread(target=send_now_and_then, daemon=True)
        sending.start()
        try:
            yield claim
        finally:
            over.set()
            sending.join()
            send_rows(objects, book)


def send_rows(objects: ObjectStore, book: Path) -> None:
    """Send whole rows that are here and not there, a part for each writer."""
    names = [name for name in objects.names("") if name.startswith(f"{book.stem}.")]
    for part in parts_of(book):
        if part.rows:
            continue  # it came from there
        ends = [_end(name) for name in names if _writer(name) == part.writer]
        start = max(ends, default=part.start)
        lines = part.path.read_bytes().split(b"\n")[:-1][start - part.start :]
        if lines:
            name = f"{book.stem}.{part.writer:06d}-{start:08d}-{len(lines):08d}{book.suffix}"
            objects.create(name, b"\n".join(lines) + b"\n")


def _writer(name: str) -> int:
    return int(name.split(".")[-2].split("-")[0])


def _end(name: str) -> int:
    _, start, rows = name.split(".")[-2].split("-")
    return int(start) + int(rows)
