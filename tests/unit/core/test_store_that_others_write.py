"""What others put into a store ends in an error of the project's: quickly, and in little memory."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest
from finished_stage import stage_record

from artifacts.run_loader import find_run, read_run
from eval_gates.answer_log import AnswerLog
from pipeline.core.errors import PrepareError, StoreError
from pipeline.core.remote_store import cache_folder
from pipeline.core.remote_store_variable import REMOTE_STORE_VARIABLE
from pipeline.core.run_folders import RunFolders
from pipeline.core.store import RECORD, Store, write_atomically
from pipeline.stages.evaluate.answer_log_sync import book_file, open_book

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
    """Nothing here waits forever, or takes half a gigabyte more than there was."""

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
def bucket(tmp_path: Path) -> Path:
    (folder := tmp_path / "bucket").mkdir()
    return folder


@pytest.fixture
def store(bucket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv(REMOTE_STORE_VARIABLE, "")
    return Store(cache_folder(f"file://{bucket}", tmp_path / "home"))


def lay(path: Path, make: Make) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    make(path)


@pytest.mark.parametrize("make", HOSTILE)
def test_a_stage_s_record(make: Make, bucket: Path, store: Store, tmp_path: Path) -> None:
    lay(bucket / "stages" / "judge" / "abc.json", make)
    with pytest.raises(StoreError):
        store.find("judge", "abc")
    folder = Store(tmp_path / "folder")
    lay(folder.root / "stages" / "judge" / "abc" / RECORD, make)
    with pytest.raises(StoreError):
        folder.find("judge", "abc")


@pytest.mark.parametrize("make", HOSTILE)
def test_content_of_a_stage(make: Make, bucket: Path, store: Store, tmp_path: Path) -> None:
    with store.open_for_writing("judge", "abc") as folder:
        assert folder is not None
        write_atomically(folder / "weights", "w" * 1000)
        write_atomically(folder / RECORD, stage_record(key="abc").model_dump_json())
    for blob in (bucket / "blobs").iterdir():
        blob.unlink()
        make(blob)
    elsewhere = Store(cache_folder(f"file://{bucket}", tmp_path / "elsewhere"))
    with pytest.raises(StoreError):
        elsewhere.stage_folder("judge", "abc")


@pytest.mark.parametrize("make", HOSTILE)
def test_a_run_s_record(make: Make, bucket: Path, store: Store, tmp_path: Path) -> None:
    lay(bucket / "runs" / "20261123-100000-000001.json", make)
    with pytest.raises(PrepareError):  # a pipe is no object: there is no run
        find_run(store, "latest")
    folder = tmp_path / "folder" / "runs" / "20261123-100000-000001"
    lay(folder / "run.json", make)
    with pytest.raises(StoreError):
        read_run(folder)


def test_runs_of_odd_names(bucket: Path, store: Store) -> None:
    """Names that collide, or that prepare gives no run, are nobody's runs."""
    for name in ("runs/a/b.json", "runs/b.json", "runs/c", "running/b/deep/er/run.json"):
        lay(bucket / name, lambda path: path.write_text("{}") and None)
    assert [folder.name for folder in RunFolders(store).all()] == ["b"]


@pytest.mark.parametrize("make", HOSTILE)
def test_a_claim(make: Make, tmp_path: Path) -> None:
    store = Store(tmp_path / "folder")
    lay(store.root / "leases" / "abc" / "000001", make)
    if make in (sparse, pipe, endless):
        with pytest.raises(StoreError), store.explain_errors():
            store.leases.read_latest("abc")
    else:
        seen = store.leases.read_latest("abc")
        assert seen is not None
        assert seen.read_owner() is None


def test_a_claim_of_no_number(tmp_path: Path) -> None:
    store = Store(tmp_path / "folder")
    lay(store.root / "leases" / "abc" / ("9" * 200), binary)
    with store.hold("abc") as claim:
        assert claim.number == 1


@pytest.mark.parametrize("make", HOSTILE)
def test_kept_answers(make: Make, bucket: Path, store: Store) -> None:
    lay(bucket / "answers" / f"{BOOK}.000001-00000000-00000001.jsonl", make)
    for name in ("x", "x.jsonl", "1-2.jsonl", "a-b-c.jsonl", "1-2-3-4.jsonl"):
        lay(bucket / "answers" / f"{BOOK}.{name}", binary)
    try:
        book = book_file(store, BOOK)
        with open_book(store, book, lambda _: None):
            rows = AnswerLog(book, ["q/1"]).rows()
    except PrepareError:
        return
    assert rows == []  # a pipe is no object, and without a whole line there are no rows


@pytest.mark.parametrize("make", HOSTILE)
def test_what_an_unfinished_try_left(make: Make, bucket: Path, store: Store) -> None:
    lay(bucket / "unfinished" / "speed" / "abc.000001-x.partial" / "deep" / "er", binary)
    lay(bucket / "unfinished" / "speed" / "abc.000001-x.partial" / "loads.jsonl", make)
    if make is sparse:
        with pytest.raises(StoreError):
            store.unfinished_folder("speed", "abc")
    else:
        folder = store.unfinished_folder("speed", "abc")
        assert {path.name for path in folder.glob("*")} <= {"loads.jsonl"}
