"""What `prepare gc` removes of an object store, and from the caches of its nodes."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from fake_run import ONE, TWO, FakeRun
from finished_stage import stage_record
from listener import Listener
from sample_reports import COMMAND
from typer.testing import CliRunner

from artifacts.registry.registry_address import open_registry
from pipeline.cli.main import app
from pipeline.core.errors import StoreError
from pipeline.core.object_store import ObjectStore
from pipeline.core.remote_store import cache_folder
from pipeline.core.remote_store_variable import REMOTE_STORE_VARIABLE
from pipeline.core.store import RECORD, Store, write_atomically
from pipeline.release.garbage_collection import find_garbage, remove
from pipeline.run.run_recorder import RunRecorder


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv(REMOTE_STORE_VARIABLE, "")
    return f"file://{tmp_path}/bucket"


def node(url: str, tmp_path: Path, name: str, *recipes: str) -> FakeRun:
    (tmp_path / name).mkdir()
    cache = cache_folder(url, tmp_path / name)
    return FakeRun(cache, recipes=recipes, uri=f"oci://{tmp_path}/registry")


def collect(store: Store, days: float = 0) -> set[str]:
    """Remove what may go; its kinds."""
    with store.collect():
        garbage = find_garbage(store, [], days, Listener())
        for each in garbage:
            remove(each, store)
    return {each.kind for each in garbage}


def names(url: str) -> list[str]:
    """All objects but those that stay: leases, probes of the clock, and the ledger of attempts."""
    stay = ("leases/", "attempts/", "measurements/")
    found = (name for name in ObjectStore(url).names() if not name.startswith(stay))
    return [name for name in found if not name.endswith("/.probe")]


def test_what_nobody_names_goes_from_the_store_and_the_cache(url: str, tmp_path: Path) -> None:
    site = node(url, tmp_path, "first", ONE)
    site.run()
    before = names(url)
    assert collect(site.store, days=1) == set()
    assert names(url) == before
    assert collect(site.store) == {"stage", "run", "answers", "content"}
    assert names(url) == []
    kept = [path for path in site.root.rglob("*") if path.is_file()]
    assert {path.relative_to(site.root).parts[0] for path in kept} <= {"remote", "fetching"}


def test_what_a_promotion_rests_on_stays_for_every_node(url: str, tmp_path: Path) -> None:
    first, second = node(url, tmp_path, "first", ONE), node(url, tmp_path, "second", TWO)
    named = first.run()
    first.promote()
    other = second.run()
    assert collect(first.store) == {"stage", "run", "answers", "content"}
    stages = {name for name in names(url) if name.startswith("stages/")}
    assert stages >= {f"stages/{s.stage}/{s.key}.json" for s in named.stages}
    own = {s.key for s in other.stages} - {s.key for s in named.stages}
    assert not own & {Path(name).stem for name in stages}
    # What the other node has of it is a copy of what is gone.
    copies = {path.name for path in second.root.glob("stages/*/*")}
    assert own & copies
    assert collect(second.store) <= {"stage", "run", "answers", "content"}
    assert not own & {path.name for path in second.root.glob("stages/*/*")}
    assert collect(first.store) == collect(second.store) == set()
    third = node(url, tmp_path, "third", ONE)
    assert {stage.status for stage in third.run().stages} == {"reused"}
    [version] = open_registry(third.uri).versions("model")
    (tmp_path / "pulled").mkdir()
    open_registry(third.uri).fetch(version, tmp_path / "pulled")
    assert (tmp_path / "pulled" / "model.safetensors").is_file()


def test_killed_at_any_removal_it_leaves_no_half_stage(url: str, tmp_path: Path) -> None:
    site = node(url, tmp_path, "first", ONE)
    site.run()
    with site.store.collect():
        garbage = find_garbage(site.store, [], 0, Listener())
    fresh = Store(cache_folder(url, tmp_path / "fresh"))
    for each in garbage:
        remove(each, site.store)
        for record in fresh.records():
            assert fresh.remote is not None
            marker = fresh.remote.find(record.stage, record.key)
            assert marker is not None
            for blob in marker.files.values():
                assert fresh.remote.objects.has(f"blobs/{blob.sha256}")
    assert names(url) == []


def test_not_while_a_run_goes_on_anywhere(url: str, tmp_path: Path) -> None:
    first, second = node(url, tmp_path, "first", ONE), node(url, tmp_path, "second", ONE)
    log = RunRecorder(first.store, "model", dict(COMMAND))
    with pytest.raises(StoreError, match=log.run_id), second.store.collect():
        find_garbage(second.store, [], 0, Listener())
    log.finish("finished", 0)
    assert collect(second.store) == {"run"}


def test_not_while_a_stage_is_written_without_a_run(url: str, tmp_path: Path) -> None:
    first, second = node(url, tmp_path, "first", ONE), node(url, tmp_path, "second", ONE)
    with first.store.open_for_writing("judge", "abc") as folder:
        assert folder is not None
        with pytest.raises(StoreError) as caught, second.store.collect():
            find_garbage(second.store, [], 0, Listener())
        assert caught.value.where.endswith("leases/abc")
        write_atomically(folder / RECORD, stage_record().model_dump_json())
    collect(second.store)
    assert second.store.find("judge", "abc") is None


@pytest.mark.parametrize("what", ["run", "stage"])
def test_who_begins_meanwhile_waits(url: str, tmp_path: Path, what: str) -> None:
    first, second = node(url, tmp_path, "first", ONE), node(url, tmp_path, "second", ONE)
    begun = threading.Event()
    told: list[str] = []

    def begin() -> None:
        if what == "run":
            RunRecorder(second.store, "model", dict(COMMAND), told.append).finish("finished", 0)
        else:
            with second.store.open_for_writing("judge", "abc", waits=told.append) as folder:
                assert folder is not None
                write_atomically(folder / RECORD, stage_record().model_dump_json())
        begun.set()

    thread = threading.Thread(target=begin)
    with first.store.collect():
        thread.start()
        time.sleep(0.5)
        assert not begun.is_set()
    thread.join(20)
    assert begun.is_set()
    assert [text for text in told if "gc" in text]


def test_the_command_says_what_it_removed(url: str, tmp_path: Path) -> None:
    sites = [node(url, tmp_path, name, ONE) for name in ("first", "second")]
    sites[0].run()
    commands = [["gc", "--older-than", "0", "--json", "--store", str(site.root)] for site in sites]
    told: list[dict[str, Any]] = []

    def remove_all(command: list[str]) -> None:
        told.append(json.loads(CliRunner().invoke(app, command, catch_exceptions=False).stdout))

    with sites[0].store.collect():  # while it is removed it can be looked at
        remove_all([*commands[1], "--dry-run"])
    remove_all(commands[0])
    remove_all(commands[1])
    in_store = [{each.get("object") for each in one["removed"]} - {None} for one in told]
    assert in_store[0] == in_store[1]
    assert [len(each) > 0 for each in in_store] == [True, True, False]
    assert {each["kind"] for each in told[2]["removed"]} == {"run"}  # the copy that was looked at
    assert names(url) == []


def test_a_record_is_seen_elsewhere_while_its_run_goes_on(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.run.run_recorder.SENT_EVERY_SECONDS", 0.05)
    first, second = node(url, tmp_path, "first", ONE), node(url, tmp_path, "second", ONE)
    log = RunRecorder(first.store, "model", dict(COMMAND))
    log.note("it goes on")

    def shown() -> dict[str, object]:
        command = ["runs", "show", log.run_id, "--json", "--store", str(second.root)]
        found = CliRunner().invoke(app, command)
        return json.loads(found.stdout) if found.exit_code == 0 else {}

    until = time.monotonic() + 20
    while shown().get("notes") != ["it goes on"]:
        assert time.monotonic() < until
    assert shown()["status"] == "running"
    log.finish("failed", 1)
    assert shown()["status"] == "failed"
    assert not [name for name in names(url) if name.startswith("running/")]
    killed = RunRecorder(first.store, "model", dict(COMMAND))
    while f"running/{killed.run_id}/run.json" not in names(url):
        assert time.monotonic() < until
    killed._over.set()  # as a kill would end it
    killed._alive.release()
    found = CliRunner().invoke(app, ["runs", "list", "--json", "--store", str(second.root)])
    assert [run["status"] for run in json.loads(found.stdout)] == ["failed", "killed"]


def test_two_at_once_take_turns(url: str, tmp_path: Path) -> None:
    first, second = node(url, tmp_path, "first", ONE), node(url, tmp_path, "second", ONE)
    held, told, order = threading.Event(), list[str](), list[str]()

    def collect_too() -> None:
        held.wait(20)
        with second.store.collect(told.append):
            order.append("second")

    thread = threading.Thread(target=collect_too)
    thread.start()
    with first.store.collect():
        held.set()
        time.sleep(0.5)
        order.append("first")
    thread.join(20)
    assert order == ["first", "second"]
    assert told
