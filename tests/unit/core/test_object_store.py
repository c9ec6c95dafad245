"""A store in an object store: what one node has finished another has, whole, and fetches once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from finished_stage import stage_record

from eval_gates.answer_log import AnswerLog
from pipeline.core import object_store
from pipeline.core.errors import StoreError, UsageError
from pipeline.core.leases import Leases
from pipeline.core.object_store import ObjectStore, check_url, log_outages
from pipeline.core.process_environment import server_environment, stage_environment
from pipeline.core.remote_store import StageManifest, StoredFile, cache_folder
from pipeline.core.remote_store_variable import REMOTE_STORE_VARIABLE
from pipeline.core.run_folders import RunFolders
from pipeline.core.store import RECORD, Store, write_atomically
from pipeline.stages.evaluate.answer_log_sync import book_file, open_book

IDS = [f"q/{number}" for number in range(100)]


FETCHER = """
import sys, time
from pathlib import Path
from pipeline.core.object_store import ObjectStore
from pipeline.core.remote_store import cache_folder
from pipeline.core.store import Store

download = ObjectStore.download

def slowly(self, name, file, limit):
    print(name, flush=True)
    time.sleep(0.5)
    return download(self, name, file, limit)

ObjectStore.download = slowly
store = Store(cache_folder(sys.argv[1], Path(sys.argv[2])))
weights = store.stage_folder("judge", "abc") / "output" / "weights"
assert weights.stat().st_size == 3_000_000
"""


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv(REMOTE_STORE_VARIABLE, "")  # and back to what it was afterwards
    return f"file://{tmp_path}/bucket/prefix"


class Node:
    """A node that shares the store, with a separate cache."""

    def __init__(self, url: str, tmp_path: Path, name: str) -> None:
        self.store = Store(cache_folder(url, tmp_path / name))
        assert self.store.remote is not None
        self.objects = self.store.remote.objects
        self.store.leases = Leases(self.objects.below("leases"), node=name)

    def finish(self, key: str = "abc", **files: str) -> None:
        with self.store.open_for_writing("judge", key) as folder:
            assert folder is not None
            for name, text in files.items():
                (folder / "output").mkdir(exist_ok=True)
                (folder / "output" / name).write_text(text)
            write_atomically(folder / RECORD, stage_record(key=key).model_dump_json())

    def outputs(self, key: str = "abc") -> dict[str, str]:
        folder = self.store.stage_folder("judge", key) / "output"
        return {path.name: path.read_text() for path in folder.iterdir()}


@pytest.fixture
def here(url: str, tmp_path: Path) -> Node:
    return Node(url, tmp_path, "here")


@pytest.fixture
def there(url: str, tmp_path: Path) -> Node:
    return Node(url, tmp_path, "there")


def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names that are downloaded from now on."""
    names, download = list[str](), ObjectStore.download

    def count(self: ObjectStore, name: str, file: Path, limit: int) -> bool:
        names.append(name)
        return download(self, name, file, limit)

    monkeypatch.setattr(ObjectStore, "download", count)
    return names


# --- stages -------------------------------------------------------------------------------------


def test_what_one_node_has_finished_another_has(here: Node, there: Node) -> None:
    assert there.store.find("judge", "abc") is None
    here.finish(weights="w" * 1000, config="{}")
    assert there.store.find("judge", "abc") == stage_record()
    assert not (there.store.root / "stages").exists()  # a record is no reason to fetch weights
    assert there.outputs() == here.outputs() == {"weights": "w" * 1000, "config": "{}"}
    assert [record.key for record in there.store.records("judge")] == ["abc"]
    assert [record.key for record in there.store.records()] == ["abc"]
    with there.store.open_for_writing("judge", "abc") as folder:
        assert folder is None


def test_content_is_fetched_once_and_linked(
    here: Node, there: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.finish("one", weights="w" * 1000)
    here.finish("two", same="w" * 1000)
    downloaded = counted(monkeypatch)
    there.outputs("one")
    there.outputs("two")
    there.outputs("two")
    Node(there.objects.url, there.store.root.parents[2], "there").outputs("two")
    assert len(downloaded) == len(set(downloaded)) == 3  # the weights, and two records
    one, two = (
        there.store.stage_folder("judge", key) / "output" / name
        for key, name in (("one", "weights"), ("two", "same"))
    )
    assert one.samefile(two)


def test_folders_that_another_node_s_plan_names_are_brought_here(here: Node, there: Node) -> None:
    here.finish(weights="w")
    named = there.store.root / "stages" / "judge" / "abc" / "output"
    for said in (["judge/abc", "/elsewhere/stages/judge/abc", None, 1], {"checkpoint": "abc"}):
        there.store.fetch_named_stages(said)
    assert not named.exists()
    there.store.fetch_named_stages(
        {"checkpoint": {"path": str(named), "parameters": 1}, "python": ""}
    )
    assert (named / "weights").read_text() == "w"
    there.store.fetch_named_stages(
        [str(named.parents[1] / "never-done" / "output"), str(named.parents[2])]
    )


def test_two_processes_of_a_node_fetch_once(here: Node, url: str, tmp_path: Path) -> None:
    here.finish(weights="w" * 3_000_000)
    command = [sys.executable, "-c", FETCHER, url, str(tmp_path / "there")]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=60)[0].split() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    downloaded = [*said[0], *said[1]]
    assert len(downloaded) == len(set(downloaded)) == 2


def test_what_a_killed_process_fetched_in_part_does_not_stay(
    here: Node, url: str, tmp_path: Path
) -> None:
    here.finish(weights="w" * 3_000_000)
    fetch = [sys.executable, "-c", FETCHER, url, str(tmp_path / "there")]
    with subprocess.Popen(fetch, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        blob = Path(first.stdout.readline().strip()).name
        first.kill()
    cache = cache_folder(url, tmp_path / "there")
    cached = cache / "blobs" / f".{blob}"
    (half := cached.with_name(f"{cached.name}.{first.pid}")).write_text("half")
    (others := cached.with_name(f"{cached.name}.1")).write_text("of one that goes on")
    [folder] = (cache / "stages" / "judge").iterdir()
    assert folder.name.endswith(f"fetched.{first.pid}")
    there = Node(url, tmp_path, "there")
    assert there.outputs() == here.outputs()
    assert (half.exists(), folder.exists(), others.exists()) == (False, False, True)


def test_cache_that_names_another_store_is_refused(here: Node, url: str, tmp_path: Path) -> None:
    """So no content of another store is taken, and no credential goes there."""
    here.finish(weights="w")
    (here.store.root / "remote").write_text(f"file://{tmp_path}/planted\n")
    with pytest.raises(StoreError, match="another folder"):
        cache_folder(url, tmp_path / "here")
    with pytest.raises(StoreError, match="another folder"):
        _ = Store(here.store.root).remote


def test_folder_with_a_planted_remote_file_is_refused(url: str, tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir(mode=0o700)
    (store / "remote").write_text(url)
    with pytest.raises(StoreError, match="another folder"):
        _ = Store(store).remote


@pytest.mark.parametrize("place", ["..", ".", "remote", "blobs", "stages"])
def test_cache_is_refused_where_others_may_write(
    here: Node, url: str, tmp_path: Path, place: str
) -> None:
    here.finish(weights="w")
    (here.store.root / place).chmod(0o777)
    with pytest.raises(StoreError, match="other users may write"):
        cache_folder(url, tmp_path / "here")


def test_cached_content_of_another_size_is_fetched_again(
    here: Node, there: Node, url: str, tmp_path: Path
) -> None:
    here.finish(weights="right", other="x")
    assert there.outputs()["weights"] == "right"
    for blob in (there.store.root / "blobs").iterdir():
        blob.unlink()
        blob.write_text("planted and longer")
    shutil.rmtree(there.store.stage_folder("judge", "abc"))
    assert Node(url, tmp_path, "there").outputs() == here.outputs()


def test_an_unfinished_stage_is_not_there(here: Node, there: Node) -> None:
    def fail() -> None:
        with here.store.open_for_writing("judge", "abc") as folder:
            assert folder is not None
            (folder / "log").write_text("last words")
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError):
        fail()
    assert there.store.find("judge", "abc") is None
    there.finish(weights="w")
    assert here.outputs() == {"weights": "w"}


def test_a_discarded_stage_is_gone_everywhere_and_made_anew(here: Node, there: Node) -> None:
    here.finish(weights="first")
    assert there.outputs() == {"weights": "first"}
    here.store.discard("judge", "abc")
    assert there.store.find("judge", "abc") is None
    with here.store.open_for_writing("judge", "abc") as folder:
        assert folder is not None
        (folder / "output").mkdir()
        (folder / "output" / "weights").write_text("second")
        record = stage_record().model_copy(update={"seconds": 77.0})
        write_atomically(folder / RECORD, record.model_dump_json())
    assert here.outputs() == {"weights": "second"}
    later = Store(there.store.root)  # another process on the node whose cache has the first
    assert (later.stage_folder("judge", "abc") / "output" / "weights").read_text() == "second"


def test_who_was_followed_publishes_nothing(here: Node, there: Node) -> None:
    """`here` is away while its stage is sent; `there` waits for a silence that is set to none."""

    def be_followed() -> None:
        with here.store.open_for_writing("judge", "abc") as folder:
            assert folder is not None
            (folder / "output").mkdir()
            (folder / "output" / "weights").write_text("of who was followed")
            write_atomically(folder / RECORD, stage_record().model_dump_json())
            there.store.leases.seconds = 0
            with there.store.hold("abc"):
                pass

    with pytest.raises(StoreError, match="took over"):
        be_followed()
    assert there.store.find("judge", "abc") is None


def test_who_is_done_first_counts(here: Node, there: Node) -> None:
    with here.store.open_for_writing("judge", "abc") as folder:
        assert folder is not None
        (folder / "output").mkdir()
        (folder / "output" / "weights").write_text("second")
        write_atomically(folder / RECORD, stage_record().model_dump_json())
        there.store.leases.seconds = 0
        there.finish(weights="first")
    assert here.outputs() == there.outputs() == {"weights": "first"}


class TestWhatIsMeasured:
    """Loads of a speed gate that is not over: measured again they would be another chance."""

    def go_on(self, node: Node, loads: str, is_over: bool = False) -> str:
        with node.store.open_for_writing("judge", "abc", ["loads"]) as folder:
            assert folder is not None
            file = folder / "loads"
            before = file.read_text() if file.exists() else ""
            file.write_text(before + loads)
            if is_over:
                write_atomically(folder / RECORD, stage_record().model_dump_json())
        return before

    def test_another_node_goes_on_with_it(self, here: Node, there: Node) -> None:
        assert self.go_on(here, "a") == ""
        assert (there.store.unfinished_folder("judge", "abc") / "loads").read_text() == "a"
        assert self.go_on(there, "b") == "a"
        assert self.go_on(there, "c") == "ab"
        assert self.go_on(here, "d") == "abc"
        assert self.go_on(there, "e", is_over=True) == "abcd"
        folder = here.store.stage_folder("judge", "abc")
        assert (folder / "loads").read_text() == "abcde"
        assert here.objects.names("unfinished") == []

    def test_what_an_error_ended_is_gone_on_with(self, here: Node, there: Node) -> None:
        def fail() -> None:
            with here.store.open_for_writing("judge", "abc", ["loads"]) as folder:
                assert folder is not None
                (folder / "loads").write_text("a")
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            fail()
        assert self.go_on(there, "b") == "a"


def test_damage_in_the_store_is_told_and_not_used(here: Node, there: Node) -> None:
    here.finish(weights="w" * 1000)
    assert here.store.remote is not None
    marker = here.store.remote.find("judge", "abc")
    assert marker is not None
    blob = f"blobs/{marker.files['output/weights'].sha256}"
    here.objects.put(blob, b"x" * 1000)
    with pytest.raises(StoreError, match="damaged") as caught:
        there.outputs()
    assert caught.value.where.endswith(blob)
    assert not (there.store.root / "stages" / "judge" / "abc").exists()
    here.objects.remove(blob)
    with pytest.raises(StoreError, match="missing in the store"):
        there.outputs()
    here.objects.put("stages/judge/abc.json", b"{")
    with pytest.raises(StoreError, match="damaged"):
        there.store.find("judge", "abc")
    assert list(there.store.records(leave_out_damaged=True)) == []


@pytest.mark.parametrize(
    "path",
    [
        *("../../evil", "/etc/evil", "a/../../evil", "", "./y", "a//b", "x/y", "a\\u0000b"),
        *("a\\nb", "y" * 256, "d/" * 40 + "y"),
    ],
)
def test_a_marker_whose_files_no_folder_can_have_is_refused(here: Node, path: str) -> None:
    blob = StoredFile(sha256="0" * 64, size=1)
    text = StageManifest(record=stage_record(), files={"x": blob, "z": blob}).model_dump_json()
    here.objects.put("stages/judge/abc.json", text.replace('"z":', f'"{path}":').encode())
    with pytest.raises(StoreError, match="damaged"):
        here.store.find("judge", "abc")


def test_a_disk_that_is_full_under_the_store_is_no_outage(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from obstore.exceptions import GenericError

    def no_room(*_: Any, **__: Any) -> None:
        raise GenericError("Unable to copy data to file: No space left on device (os error 28)")

    def sleep(_: float) -> None:
        raise AssertionError("it is waited for")

    monkeypatch.setattr(
        object_store, "time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic)
    )
    objects = ObjectStore(url)
    objects.__dict__["_client"] = SimpleNamespace(put=no_room)
    with pytest.raises(StoreError, match="full"):
        objects.put("x", b"1")


# --- runs, trials, books ------------------------------------------------------------------------


def test_the_record_of_a_run_is_shared_as_it_grows(here: Node, there: Node) -> None:
    folder = RunFolders(here.store).make("20261122-100000-000001")
    assert RunFolders(there.store).all() == []
    for text, is_over in (("{}", False), ("{1}", False), ("{2}", True)):
        (folder / "run.json").write_text(text)
        RunFolders(here.store).publish_record(folder, is_over=is_over)
        [found] = RunFolders(there.store).all()
        assert (found.name, (found / "run.json").read_text()) == (folder.name, text)
        assert RunFolders(there.store).maybe_running() == ([] if is_over else [found])
    (folder / "run.json").write_text("of this node")
    assert RunFolders(here.store).all() == [folder]
    assert (folder / "run.json").read_text() == "of this node"


def row(number: int) -> dict[str, Any]:
    return {"id": IDS[number], "prompt_sha256": "", "answer": "\u2028", "score": 1.0}


def test_answers_of_one_node_are_gone_on_with_on_another(here: Node, there: Node) -> None:
    def ask(node: Node, numbers: range) -> None:
        book = book_file(node.store, "b" * 64)
        with open_book(node.store, book, lambda text: None) as claim:
            answers = AnswerLog(book, IDS, writer=claim.number)
            assert [each["id"] for each in answers.rows()] == IDS[: numbers.start]
            for number in numbers:
                answers.append([row(number)])

    ask(here, range(4))
    ask(there, range(4, 6))
    ask(here, range(6, 7))
    ask(here, range(7, 9))
    ask(there, range(9, 10))
    for node in (here, there):
        rows = AnswerLog(book_file(node.store, "b" * 64), IDS).rows()
        assert rows == [row(number) for number in range(10)]


def test_answers_reach_the_store_while_they_are_asked(
    here: Node, there: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.stages.evaluate.answer_log_sync.SENT_EVERY_SECONDS", 0.05)
    book = book_file(here.store, "b" * 64)
    with open_book(here.store, book, lambda text: None) as claim:
        answers = AnswerLog(book, IDS, writer=claim.number)
        for number in range(3):
            answers.append([row(number)])
            deadline = time.monotonic() + 20
            while len(AnswerLog(book_file(there.store, "b" * 64), IDS).rows()) <= number:
                assert time.monotonic() < deadline
                time.sleep(0.02)


# --- what goes wrong ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        "ftp://x/y",
        "http://x/y",
        "s3://",
        "s3:///x",
        "file:///",
        "s3://key:secret@bucket/x",
        "s3://bucket/x?region=y",
    ],
)
def test_a_wrong_url_is_refused(wrong: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_url(wrong, "--store")
    assert caught.value.where == "--store"
    assert "secret" not in str(caught.value)


def test_without_the_library_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(UsageError) as caught:
        check_url("s3://bucket/prefix", "PREPARE_STORE")
    assert "object-store" in caught.value.hint
    assert caught.value.where == "PREPARE_STORE"


class Outage:
    """An object store that does not answer so many times."""

    def __init__(self, client: Any, times: int) -> None:
        self.client, self.times = client, times

    def __getattr__(self, name: str) -> Any:
        from obstore.exceptions import GenericError

        def answer(*arguments: Any, **options: Any) -> Any:
            if self.times > 0:
                self.times -= 1
                raise GenericError("connection refused\n\nDebug source:\nmuch")
            return getattr(self.client, name)(*arguments, **options)

        return answer


def test_an_outage_is_waited_for_and_told_once(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    slept, told = list[float](), list[str]()
    clock = SimpleNamespace(sleep=slept.append, monotonic=time.monotonic)
    monkeypatch.setattr(object_store, "time", clock)  # other threads may sleep meanwhile
    objects = ObjectStore(url)
    objects.__dict__["_client"] = Outage(objects._client, 5)
    with log_outages(told.append):
        assert objects.below("leases").put_if_absent("x", b"1")
    assert len(slept) == 5
    assert len(told) == 1
    assert url in told[0]


def test_an_outage_that_lasts_is_a_store_error(url: str) -> None:
    objects = ObjectStore(url, retry_timeout_s=0.1)
    objects.__dict__["_client"] = Outage(objects._client, 10**6)
    with pytest.raises(StoreError) as caught:
        objects.get("x")
    assert caught.value.where == url
    assert "continues" in caught.value.hint
    assert "Debug source" not in str(caught.value)
    with pytest.raises(UsageError):
        objects.check()


class AnswerLost:
    """Does what is asked, and loses the answer of the first put."""

    def __init__(self, client: Any) -> None:
        self.client, self.lost = client, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)

    def put(self, *arguments: Any, **options: Any) -> Any:
        from obstore.exceptions import GenericError

        answer = self.client.put(*arguments, **options)
        if not self.lost:
            self.lost = True
            raise GenericError("connection reset")
        return answer


def test_a_creation_whose_answer_was_lost_is_ours(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store.time, "sleep", lambda seconds: None)
    objects = ObjectStore(url)
    objects.__dict__["_client"] = AnswerLost(objects._client)
    assert objects.put_if_absent("x", b"ours")
    assert not objects.put_if_absent("x", b"another's")


# --- who is given credentials -------------------------------------------------------------------


def test_only_our_stages_on_such_a_store_get_its_credentials(
    here: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = {"PATH": "/bin", "AWS_SECRET_ACCESS_KEY": "secret", "AZURE_CLIENT_SECRET": "secret"}
    assert "AWS_SECRET_ACCESS_KEY" not in stage_environment(base, "check_weights")
    assert os.environ[REMOTE_STORE_VARIABLE] == here.objects.url
    given = stage_environment(
        {**base, REMOTE_STORE_VARIABLE: os.environ[REMOTE_STORE_VARIABLE]}, "check_weights"
    )
    assert given["AWS_SECRET_ACCESS_KEY"] == given["AZURE_CLIENT_SECRET"] == "secret"
    worker = server_environment(
        {**base, REMOTE_STORE_VARIABLE: os.environ[REMOTE_STORE_VARIABLE]}, {}
    )
    assert "secret" not in worker.values()


def test_on_another_node_the_variable_says_which_store_it_is(
    here: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.finish(weights="w")
    elsewhere = tmp_path / "elsewhere" / here.store.root.name
    assert Store(elsewhere).find("judge", "abc") == stage_record()
    assert Store(tmp_path / "elsewhere" / "plain").remote is None


def test_what_is_there_is_private(here: Node, there: Node) -> None:
    here.finish(weights="w")
    there.outputs()
    assert [path for path in there.store.root.rglob("*") if path.stat().st_mode & 0o077] == []
