from __future__ import annotations

import errno
import fcntl
import gc
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from finished_stage import put_record, stage_record, unfinished_folder

from artifacts.run_record import read_run
from eval_gates.answer_log import ANSWERS, read_answers
from prepare import store as store_module
from prepare.digest import digest_json
from prepare.errors import ExitCode, StoreError, explain
from prepare.private_files import write_atomically
from prepare.store import RECORD, RUN_RECORD, RunFolders, Store

NOBODY = 65534


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def finish(store: Store, key: str = "abc", output: str = "") -> None:
    with store.open_for_writing("judge", key) as folder:
        assert folder is not None
        (folder / "output.txt").write_text(output)
        write_atomically(folder / RECORD, stage_record(key=key).model_dump_json())


# --- writing and finding ------------------------------------------------------------------------


def test_a_finished_stage_is_found_with_all_it_wrote(store: Store) -> None:
    assert store.find("judge", "abc") is None
    finish(store, output="whole")
    assert store.find("judge", "abc") == stage_record()
    assert (store.stage_folder("judge", "abc") / "output.txt").read_text() == "whole"
    assert store.find("judge", "other") is None
    assert store.find("verify", "abc") is None


@pytest.mark.parametrize("name", ["abc.partial", "abc.000007-0a1b2c3d.partial"])
def test_what_a_killed_run_left_is_emptied(store: Store, name: str) -> None:
    partial = store.stage_folder("judge", "abc").with_name(name)
    (partial / "output").mkdir(parents=True)
    (partial / "output" / "half.safetensors").write_bytes(b"half")
    finish(store)
    names = sorted(path.name for path in store.stage_folder("judge", "abc").iterdir())
    assert names == ["output.txt", RECORD]
    assert not partial.exists()


def test_after_an_exception_there_is_no_final_folder_but_the_log(store: Store) -> None:
    def fail() -> None:
        with store.open_for_writing("judge", "abc") as folder:
            assert folder is not None
            (folder / "worker.log").write_text("last words")
            write_atomically(folder / RECORD, stage_record().model_dump_json())
            raise RuntimeError("the stage broke")

    with pytest.raises(RuntimeError, match="the stage broke"):
        fail()
    final = store.stage_folder("judge", "abc")
    assert not final.exists()
    assert (unfinished_folder(store, "judge", "abc") / "worker.log").read_text() == "last words"
    finish(store)  # the claim was given back
    assert final.is_dir()


def test_a_block_that_ends_without_a_record_is_an_error(store: Store) -> None:
    def forget() -> None:
        with store.open_for_writing("judge", "abc") as folder:
            assert folder is not None
            (folder / "output.txt").write_text("no record next to it")

    with pytest.raises(StoreError) as caught:
        forget()
    assert caught.value.where == str(unfinished_folder(store, "judge", "abc"))
    assert not store.stage_folder("judge", "abc").exists()


def test_a_finished_stage_is_not_written_again(store: Store) -> None:
    finish(store, output="first")
    with store.open_for_writing("judge", "abc") as folder:
        assert folder is None
    assert (store.stage_folder("judge", "abc") / "output.txt").read_text() == "first"


# --- damage, discarding, runs -------------------------------------------------------------------


def test_all_records(store: Store) -> None:
    for stage, key in (
        ("verify", "b"),
        ("verify", "a"),
        ("quantize", "c"),
        ("verify", "d.partial"),
    ):
        put_record(store, stage_record(stage=stage, key=key))
    assert [(r.stage, r.key) for r in store.records()] == [
        ("quantize", "c"),
        ("verify", "a"),
        ("verify", "b"),
    ]
    (store.stage_folder("verify", "a") / RECORD).write_text("{")
    assert [r.key for r in store.records("verify", leave_out_damaged=True)] == ["b"]
    with pytest.raises(StoreError) as caught:
        list(store.records("verify"))
    assert caught.value.where == str(store.stage_folder("verify", "a") / RECORD)
    assert [r.key for r in store.records("quantize")] == ["c"]


@pytest.mark.parametrize("text", ["", "{", '{"stage": "judge"}', "[1, 2]"])
def test_a_damaged_record_says_which_folder_to_delete(store: Store, text: str) -> None:
    finish(store)
    folder = store.stage_folder("judge", "abc")
    (folder / RECORD).write_text(text)
    with pytest.raises(StoreError) as caught:
        store.find("judge", "abc")
    assert caught.value.where == str(folder / RECORD)
    assert str(folder) in caught.value.hint


@pytest.mark.parametrize("what", ["pipe", "device"])
@pytest.mark.timeout(20)
def test_what_another_user_put_in_a_files_place_is_refused(store: Store, what: str) -> None:
    def put(path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        if what == "pipe":
            os.mkfifo(path)
        else:
            path.symlink_to("/dev/zero")

    finish(store)
    folder = store.stage_folder("judge", "abc")
    put(folder / RECORD)
    with pytest.raises(StoreError):
        store.find("judge", "abc")
    put(folder / ANSWERS)
    with pytest.raises(OSError, match="not a file"):
        read_answers(folder)
    put(store.root / "runs" / "a" / RUN_RECORD)
    with pytest.raises(StoreError, match="run's record"):
        read_run(store.root / "runs" / "a")


def test_a_discarded_stage_can_be_run_again(store: Store) -> None:
    finish(store, output="first")
    finish(store, key="other")
    store.discard("judge", "abc")
    assert store.find("judge", "abc") is None
    assert [path.name for path in (store.root / "stages" / "judge").iterdir()] == ["other"]
    finish(store, output="second")
    assert (store.stage_folder("judge", "abc") / "output.txt").read_text() == "second"


def test_a_stage_is_current_until_an_input_is_made_again(store: Store) -> None:
    made_of = stage_record(
        stage="quantize", key="def", inputs={}, input_digests={}, result={"a": 1}
    )
    record = stage_record(input_digests={"weights": digest_json({"a": 1})})
    put_record(store, record)
    assert store.find_current("judge", "abc") == record  # nothing is known of an input that is gone
    put_record(store, made_of)
    assert store.find_current("judge", "abc") == record
    put_record(store, made_of.model_copy(update={"result": {"a": 2}}))
    assert store.find_current("judge", "abc") is None
    assert store.find("judge", "abc") == record
    assert store.find_current("judge", "other") is None


# --- errors explained ---------------------------------------------------------------------------


@contextmanager
def folder_one_may_not_write() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o555)
        is_root = os.geteuid() == 0
        if is_root:
            os.seteuid(NOBODY)
        try:
            yield folder
        finally:
            if is_root:
                os.seteuid(0)
            folder.chmod(0o755)


def test_a_read_only_folder_is_explained() -> None:
    with (
        folder_one_may_not_write() as folder,
        pytest.raises(StoreError, match="cannot be used") as caught,
    ):
        RunFolders(Store(folder)).make("run")
    assert str(folder) in caught.value.where
    assert "--store" in caught.value.hint
    assert caught.value.exit_code == ExitCode.EXPECTED_ERROR
    with folder_one_may_not_write() as folder:
        assert "cannot be used" in str(Store(folder / "store").find_fault())
    with (
        folder_one_may_not_write() as folder,
        pytest.raises(StoreError, match="cannot be used"),
        Store(folder / "store").open_for_writing("judge", "abc"),
    ):
        pytest.fail("a folder was handed out in a store that cannot be written")


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_another_users_private_store_is_explained(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    os.seteuid(NOBODY)
    try:
        with pytest.raises(StoreError, match="cannot be used"):
            RunFolders(Store(tmp_path)).all()
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("place", ["/proc/store", f"{__file__}/store"])
def test_a_folder_that_cannot_be_made_is_explained(place: str) -> None:
    with pytest.raises(StoreError, match="cannot be used"):
        RunFolders(Store(Path(place))).make("run")


def test_a_full_disk_is_explained(store: Store) -> None:
    def fill() -> None:
        with store.open_for_writing("judge", "abc"):
            # The kernel answers every write here with ENOSPC.
            Path("/dev/full").write_text("weights")

    with pytest.raises(StoreError) as caught:
        fill()
    assert caught.value.where == str(store.root)
    assert "free some space" in caught.value.hint
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.ENOSPC
    assert not store.stage_folder("judge", "abc").exists()


@pytest.mark.parametrize("number", [errno.EIO, errno.EROFS, errno.ESTALE])
def test_a_disk_that_fails_while_a_result_is_written_is_explained(
    store: Store, number: int
) -> None:
    def fail(path: str | None) -> None:
        with store.open_for_writing("judge", "abc"):
            raise OSError(number, os.strerror(number), path)

    for path in (None, str(store.root / "stages" / "x")):  # a write names no path
        with pytest.raises(StoreError, match=os.strerror(number)) as caught:
            fail(path)
        assert caught.value.where == (path or str(store.root))
        assert caught.value.hint is not None
        assert "chgrp" not in caught.value.hint
    with pytest.raises(OSError, match="elsewhere") as other:
        fail("/elsewhere")
    explained = explain(other.value)
    assert isinstance(explained, StoreError)
    assert explained.where == "/elsewhere"


def test_a_folder_of_locks_that_leads_to_nothing_is_explained(store: Store) -> None:
    store.make_root()
    (store.root / "locks").symlink_to("nowhere")
    with pytest.raises(StoreError) as caught, store.hold("abc"):
        pytest.fail("a lock was held")
    assert caught.value.where == str(store.root / "locks")


def test_a_lock_that_the_system_refuses_is_explained(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, how: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(StoreError) as caught, store.in_use():
        pytest.fail("a lock was held")
    assert caught.value.where == str(store.root / "lock")


class TestResumed:
    def killed_try(self, store: Store) -> None:
        def be_killed() -> None:
            with store.open_for_writing("quantize", "abc", ["output"]) as folder:
                assert folder is not None
                (folder / "output").mkdir(exist_ok=True)
                (folder / "output" / "shard").write_text("whole")
                (folder / "worker.log").write_text("old")
                (folder / "other").mkdir()
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            be_killed()

    def found(self, store: Store, resumed: list[str]) -> set[str]:
        with store.open_for_writing("quantize", "abc", resumed) as folder:
            assert folder is not None
            names = {path.relative_to(folder).as_posix() for path in folder.rglob("*")}
            write_atomically(folder / RECORD, stage_record(stage="quantize").model_dump_json())
        return names

    def test_what_the_stage_goes_on_with_is_there(self, store: Store) -> None:
        self.killed_try(store)
        assert self.found(store, ["output"]) == {"output", "output/shard"}
        final = store.stage_folder("quantize", "abc")
        assert list(final.parent.glob("abc*")) == [final]

    def test_other_stages_begin_anew(self, store: Store) -> None:
        self.killed_try(store)
        assert self.found(store, []) == set()

    def test_the_newest_of_several_left_ones_is_continued(self, store: Store) -> None:
        """A folder is as new as its newest file."""
        final = store.stage_folder("speed", "abc")
        for token, folder_time, file_time in (("0a", 200, 100), ("0b", 100, 300)):
            left = final.with_name(f"abc.{token}.partial")
            left.mkdir(parents=True)
            (left / "loads.jsonl").write_text(token)
            os.utime(left / "loads.jsonl", (file_time, file_time))
            os.utime(left, (folder_time, folder_time))
        with store.open_for_writing("speed", "abc", ["loads.jsonl"]) as folder:
            assert folder is not None
            assert (folder / "loads.jsonl").read_text() == "0b"

    def test_one_that_goes_on_may_end_without_a_record(self, store: Store) -> None:
        with store.open_for_writing("speed", "abc", ["loads.jsonl"]) as folder:
            assert folder is not None
            (folder / "loads.jsonl").write_text("{}")
        assert store.find("speed", "abc") is None
        assert list(unfinished_folder(store, "speed", "abc").iterdir())


def loose(folder: Path) -> list[Path]:
    return [each for each in (folder, *folder.rglob("*")) if each.lstat().st_mode & 0o077]


def test_a_store_is_its_owners_alone(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    (RunFolders(store).make("r1") / "run.json").touch(mode=0o600)
    with store.open_for_writing("quantize", "key") as folder:
        assert folder is not None
        write_atomically(folder / RECORD, "{}")
    assert loose(store.root) == []
    assert tmp_path.stat().st_mode & 0o077 == 0 or tmp_path not in loose(store.root)


def test_a_store_that_others_could_read_is_closed_to_them(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    store.root.mkdir(mode=0o755)
    store.root.chmod(0o755)
    RunFolders(store).make("r1")
    assert loose(store.root) == []


def test_a_hold_that_was_dropped_does_nothing_when_python_collects_it(store: Store) -> None:
    """Python may collect it while the same thread takes another hold: that would never end."""
    store.in_use().__enter__()
    with store_module._stores_guard:
        collecting = threading.Thread(target=gc.collect, daemon=True)
        collecting.start()
        collecting.join(timeout=20)
        assert not collecting.is_alive()
    assert store.is_in_use
