from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from prepare.errors import StoreError
from prepare.store import RunFolders, Store, is_alive

# A driver with a child in a supervisor, as a worker or a server is; the child needs a while to end.
DRIVER = """
import subprocess, sys
from pathlib import Path
from prepare.file_locks import held_descriptors
from prepare.store import RunFolders, Store
from prepare.supervisor import SupervisedProcess
store = Store(Path(sys.argv[1]))
run = RunFolders(store).make("r")
stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); "
stubborn += "print('up', flush=True); time.sleep(60)"
with store.in_use(), RunFolders(store).hold_alive(run), store.hold("key"):
    child = SupervisedProcess(
        [sys.executable, "-c", stubborn], environment={}, output=subprocess.PIPE,
        held_descriptors=held_descriptors(), grace_seconds=3.0,
    )
    child.output.readline()
    print("works", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def test_a_killed_drivers_locks_last_until_its_last_child_is_gone(store: Store) -> None:
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(store.root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert driver.stdout is not None
    assert driver.stdin is not None
    assert driver.stdout.readline() == "works\n"
    run = store.root / "runs" / "r"
    assert is_alive(run)
    with pytest.raises(StoreError, match="run r") as caught, store.collect():
        pass
    assert caught.value.where == str(run)
    driver.kill()
    driver.wait()
    driver.stdin.close()
    driver.stdout.close()
    with pytest.raises(StoreError), store.collect():
        pass
    with store.hold("key", wait=False) as is_held:
        assert not is_held
    with store.hold("key") as is_held:  # once the child is gone
        assert is_held
    deadline = time.monotonic() + 30  # its files are closed one after the other
    while is_alive(run) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_alive(run)
    with store.collect():
        pass


def test_a_run_without_a_process_is_not_alive(store: Store) -> None:
    run = RunFolders(store).make("r")
    assert not is_alive(run)
    with RunFolders(store).hold_alive(run):
        assert is_alive(run)
    assert not is_alive(run)


def test_a_store_is_collected_alone_and_keeps_no_lock_files(store: Store) -> None:
    with store.hold("one"), store.hold("two"), store.in_use():
        with pytest.raises(StoreError), store.collect():
            pass
        assert store.is_in_use
    assert not store.is_in_use
    assert (store.root / "locks" / "one").exists()
    with store.collect():
        with store.hold("one"):  # what it removes
            pass
        with pytest.raises(StoreError):
            store.refuse_in_use()
    assert not (store.root / "locks").exists()


def test_a_run_waits_for_a_collection(store: Store) -> None:
    code = (
        "import sys; from pathlib import Path; from prepare.store import Store\n"
        "with Store(Path(sys.argv[1])).in_use(lambda text: print(text, flush=True)): print('in')"
    )
    with store.collect():
        user = subprocess.Popen(
            [sys.executable, "-c", code, str(store.root)], stdout=subprocess.PIPE, text=True
        )
        assert user.stdout is not None
        assert "prepare gc" in user.stdout.readline()
        assert user.poll() is None
    assert user.communicate(timeout=60)[0] == "in\n"
