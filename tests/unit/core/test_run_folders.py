"""Who works for a run, as far as those can tell who would remove things."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from listener import Listener

from pipeline.core.errors import StoreError
from pipeline.core.key_value_store import FileKeyValueStore
from pipeline.core.leases import Leases
from pipeline.core.run_folders import RUN_RECORD, RunFolders
from pipeline.core.store import Store
from pipeline.release.garbage_collection import find_garbage

WORKER = """
import sys, time
from pathlib import Path
from pipeline.core.run_folders import RunFolders
from pipeline.core.store import Store
run = Path(sys.argv[1])
with RunFolders(Store(run.parents[1])).hold_in_use(run, print):
    print("works", flush=True)
    time.sleep(60)
"""
COLLECTOR = """
import sys
from pathlib import Path
from pipeline.core.leases import Leases
from pipeline.core.store import Store
store = Store(Path(sys.argv[1]))
store.leases = Leases(store.leases.store, node="elsewhere")
with store.collect() as claim:
    print("has", flush=True)
    sys.stdin.readline()
    print("removes" if claim.is_current() else "removes nothing", flush=True)
"""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def killed_run(store: Store) -> Path:
    """The folder of a run whose driver is no more."""
    folder = RunFolders(store).make("killed")
    (folder / RUN_RECORD).write_text("{}")
    return folder


def test_nothing_is_removed_while_a_job_works_whose_driver_was_killed(store: Store) -> None:
    run = killed_run(store)
    find_garbage(store, [], 0, Listener())
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER, str(run)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "works\n"
        with pytest.raises(StoreError) as caught:
            find_garbage(store, [], 0, Listener())
        assert caught.value.where == str(run)
    finally:
        worker.kill()
        worker.communicate()
    find_garbage(store, [], 0, Listener())


def test_who_has_worked_leaves_nothing(store: Store) -> None:
    run, folders = killed_run(store), RunFolders(store)
    with folders.hold_in_use(run, print), folders.hold_in_use(run, print):
        assert folders.is_in_use(run)
    assert not folders.is_in_use(run)
    assert [path for path in run.rglob("*") if path.is_file()] == [run / RUN_RECORD]


def test_who_was_stopped_while_removing_removes_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On another node: a run that begins meanwhile counts on what it finds."""
    monkeypatch.setenv("PREPARE_LEASE_SECONDS", "2")
    root, heard = tmp_path / "store", Listener()
    collector = subprocess.Popen(
        [sys.executable, "-c", COLLECTOR, str(root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert collector.stdout is not None
        assert collector.stdout.readline() == "has\n"
        collector.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        Store(root).wait_for_collection(heard.note)
        assert time.monotonic() - began > 1
        assert heard.notes == ["waiting for `prepare gc` on this store"]
        collector.send_signal(signal.SIGCONT)
        said, _ = collector.communicate("\n", timeout=30)
        assert said == "removes nothing\n" or collector.returncode != 0  # its heart may be first
    finally:
        collector.kill()
        collector.communicate()


def test_one_that_is_heard_of_is_not_followed(tmp_path: Path) -> None:
    store = FileKeyValueStore(tmp_path)
    here, elsewhere = Leases(store, seconds=60), Leases(store, seconds=60, node="elsewhere")
    for owner in (here, elsewhere):
        with owner.hold("key") as claim:
            here.revoke_silent("key")
            assert claim.is_current()
    here.revoke_silent("key")
    here.revoke_silent("none")
