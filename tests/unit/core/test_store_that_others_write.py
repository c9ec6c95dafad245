from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest

from artifacts.run_record import read_run
from eval_gates.answer_log import AnswerLog
from pipeline.core.errors import PrepareError, StoreError
from pipeline.core.store import RECORD, Store
from pipeline.stages.evaluate import book_file, open_book

DEEP = b'{"a":' * 100_000 + b"1" + b"}" * 100_000
BOOK = "b" * 64
GIGABYTE = 10**9


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(GIGABYTE)


def pipe(path: Path) -> None:
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def deep(path: Path) -> None:
    path.write_bytes(DEEP)


def binary(path: Path) -> None:
    path.write_bytes(b"\xff\xfe\0" * 100)


HOSTILE = [sparse, pipe, endless, deep, binary]
Make = Callable[[Path], None]


@pytest.fixture(autouse=True)
def quickly_in_little_memory() -> Iterator[None]:
    def give_up(_: int, __: FrameType | None) -> None:
        raise TimeoutError("it hangs")

    before = signal.signal(signal.SIGALRM, give_up)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    signal.alarm(30)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 500_000  # KiB


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def lay(path: Path, make: Make) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    make(path)


@pytest.mark.parametrize("make", HOSTILE)
def test_a_stage_s_record(make: Make, store: Store) -> None:
    lay(store.root / "stages" / "judge" / "abc" / RECORD, make)
    with pytest.raises(StoreError):
        store.find("judge", "abc")


@pytest.mark.parametrize("make", HOSTILE)
def test_a_run_s_record(make: Make, store: Store) -> None:
    folder = store.root / "runs" / "20261123-100000-000001"
    lay(folder / "run.json", make)
    with pytest.raises(StoreError):
        read_run(folder)


@pytest.mark.parametrize("make", [pipe, endless, deep, binary])
def test_kept_answers(make: Make, store: Store) -> None:
    answers = store.root / "answers"
    lay(answers / f"{BOOK}.000001-00000000.jsonl", make)
    for name in ("x", "x.jsonl", "1-2.jsonl", "a-b-c.jsonl", "1-2-3-4.jsonl"):
        lay(answers / f"{BOOK}.{name}", binary)
    try:
        book = book_file(store, BOOK)
        with open_book(store, book, lambda _: None):
            rows = AnswerLog(book, ["q/1"]).rows()
    except PrepareError:
        return
    assert rows == []  # without a whole line there are no rows
