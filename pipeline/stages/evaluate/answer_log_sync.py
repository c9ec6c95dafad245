"""Answer logs shared by all users of a store.

In a shared folder all users have a log's files. With an object store they are copied: rows that
this node added go there as separate objects, every few seconds, and rows of others come here when
the log is read.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from eval_gates.answer_log import parts_of
from pipeline.core.errors import StoreError
from pipeline.core.leases import Lease
from pipeline.core.object_store import ObjectStore
from pipeline.core.private_files import make_folder
from pipeline.core.store import Store

FOLDER = "answers"
SENT_EVERY_SECONDS = 5.0


def book_file(store: Store, key: str) -> Path:
    """Return the log's path, after fetching rows of other nodes."""
    book = store.root / FOLDER / f"{key}.jsonl"
    if store.remote is not None:
        writers = {part.writer for part in parts_of(book) if not part.rows}
        sent = _sent_parts(store.remote.objects.names(FOLDER), key)
        # What was written here is here, and may have more rows than were sent.
        store.remote.download_files(
            FOLDER, [each.name for each in sent if each.writer not in writers]
        )
    return book


@contextmanager
def open_book(store: Store, book: Path, waits: Callable[[str], None]) -> Iterator[Lease]:
    """Hold a log exclusively to append to it; new rows are sent to others meanwhile."""
    with store.hold(book.stem, waits) as claim:
        make_folder(book.parent)
        if store.remote is None:
            yield claim
            return
        book_file(store, book.stem)  # what others have added while we waited
        objects, over = store.remote.objects.below(FOLDER), threading.Event()

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
    """Upload complete rows that are not uploaded yet, one part per writer."""
    sent = _sent_parts(objects.names(""), book.stem)
    for part in parts_of(book):
        if part.rows:
            continue  # it came from there
        start = max((each.end for each in sent if each.writer == part.writer), default=part.start)
        lines = part.path.read_bytes().split(b"\n")[:-1][start - part.start :]
        if lines:
            name = f"{book.stem}.{part.writer:06d}-{start:08d}-{len(lines):08d}{book.suffix}"
            objects.put_if_absent(name, b"\n".join(lines) + b"\n")


@dataclass(frozen=True)
class _SentPart:
    name: str
    writer: int
    end: int  # the first row after it


def _sent_parts(names: Iterable[str], key: str) -> list[_SentPart]:
    found = (re.fullmatch(rf"{re.escape(key)}\.(\d+)-(\d+)-(\d+)\.jsonl", each) for each in names)
    return [_SentPart(m[0], int(m[1]), int(m[2]) + int(m[3])) for m in found if m is not None]
