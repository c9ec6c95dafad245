"""Locks of the node: real processes hold them, are killed, and belong to two users."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pipeline.core import node_locks
from pipeline.core.errors import UsageError
from pipeline.core.node_locks import NodeLocks, lock_folder

HOLD = """
import sys
from pathlib import Path
from pipeline.core.node_locks import NodeLocks

locks = NodeLocks(Path(sys.argv[1]))
print(locks.try_acquire("node", shared=sys.argv[2] == "shared") is not None, flush=True)
sys.stdin.read()
"""
# The lock is passed on to a child that outlives its holder.
PASS_ON = """
import subprocess, sys
from pathlib import Path
from pipeline.core.node_locks import NodeLocks

held = NodeLocks(Path(sys.argv[1])).try_acquire("node")
child = subprocess.Popen(["sleep", "60"], pass_fds=[held], stdout=subprocess.DEVNULL)
print(child.pid, flush=True)
sys.stdin.read()
"""
NOBODY, DAEMON = 65534, 1
two_users = pytest.mark.skipif(os.getuid() != 0, reason="only root can be two users")


@contextmanager
def process(script: str, *arguments: str, user: int | None = None) -> Iterator[tuple[int, str]]:
    """A process that runs the script, and the first line that it prints."""
    if user is not None:  # who may not read the interpreter, so all is imported before
        become = f"os.setgroups([]); os.setgid({user}); os.setuid({user})"
        script = f"import os, pipeline.core.node_locks; {become}\n{script}"
    with subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PATH": os.environ["PATH"]},
        cwd=Path(__file__).parents[3],
    ) as started:
        assert started.stdout is not None
        yield started.pid, started.stdout.readline().strip()
        started.kill()


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """A folder as /run/lock is one."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o1777)
        yield Path(folder)


def is_free(folder: Path, *, shared: bool = False) -> bool:
    descriptor = NodeLocks(folder).try_acquire("node", shared=shared)
    if descriptor is not None:
        os.close(descriptor)
    return descriptor is not None


def test_one_has_it_alone_or_several_share_it(tmp_path: Path) -> None:
    locks = NodeLocks(tmp_path)
    alone = locks.try_acquire("node")
    assert alone is not None
    assert locks.try_acquire("node") is None
    assert locks.try_acquire("node", shared=True) is None
    other = locks.try_acquire("cpus")
    assert other is not None
    os.close(alone)
    shared = [locks.try_acquire("node", shared=True) for _ in range(2)]
    assert None not in shared
    assert locks.try_acquire("node") is None
    for descriptor in (*shared, other):
        assert descriptor is not None
        os.close(descriptor)
    assert is_free(tmp_path)


@pytest.mark.parametrize(("held", "asked", "given"), [
    ("alone", "alone", "False"),
    ("alone", "shared", "False"),
    ("shared", "alone", "False"),
    ("shared", "shared", "True"),
])  # fmt: skip
def test_another_process(tmp_path: Path, held: str, asked: str, given: str) -> None:
    with (
        process(HOLD, str(tmp_path), held) as (_, first),
        process(HOLD, str(tmp_path), asked) as (_, second),
    ):
        assert (first, second) == ("True", given)


def test_a_killed_holder_holds_nothing(tmp_path: Path) -> None:
    with process(HOLD, str(tmp_path), "alone") as (pid, _):
        assert not is_free(tmp_path)
        os.kill(pid, 9)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert is_free(tmp_path)


def test_who_was_handed_the_lock_holds_it_when_the_taker_is_killed(tmp_path: Path) -> None:
    with process(PASS_ON, str(tmp_path)) as (taker, child):
        os.kill(taker, 9)
        os.waitid(os.P_PID, taker, os.WEXITED | os.WNOWAIT)
        assert not is_free(tmp_path)
        os.kill(int(child), 9)
        deadline = time.monotonic() + 10
        while not is_free(tmp_path):
            assert time.monotonic() < deadline
            time.sleep(0.01)


@two_users
@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_two_users(open_to_all: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        with (
            process(HOLD, str(open_to_all), "alone", user=NOBODY) as (_, first),
            process(HOLD, str(open_to_all), "alone", user=DAEMON) as (_, second),
        ):
            assert (first, second) == ("True", "False")
        with process(HOLD, str(open_to_all), "alone", user=DAEMON) as (_, again):
            assert again == "True"  # of a file that is the other's
        file = open_to_all / "prepare.node.lock"
        assert (file.stat().st_uid, stat.S_IMODE(file.stat().st_mode)) == (NOBODY, 0o444)
    finally:
        os.umask(before)


@two_users
def test_a_wish_of_another_user_counts_until_it_is_old(
    open_to_all: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wish = (
        "import sys; from pathlib import Path; from pipeline.core.node_locks import NodeLocks; "
        "NodeLocks(Path(sys.argv[1])).reserve('node'); print('wished')"
    )
    locks = NodeLocks(open_to_all)
    with process(wish, str(open_to_all), user=NOBODY):
        assert locks.is_reserved("node")
        assert not locks.is_reserved("gpus")
    locks.cancel_reservation("node")  # ours, which there is not
    assert locks.is_reserved("node")
    monkeypatch.setattr(node_locks, "RESERVATION_S", 0.0)
    assert not locks.is_reserved("node")


def test_no_file_is_ever_made_under_a_name_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the kernel has it with fs.protected_regular for another user's file."""
    opened = os.open

    def protected(path: str | Path, flags: int, *rest: int, **named: int) -> int:
        if Path(path).exists() and flags & os.O_CREAT:
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, flags, *rest, **named)

    monkeypatch.setattr(os, "open", protected)
    assert is_free(tmp_path)
    assert is_free(tmp_path)


def test_a_file_that_was_removed_while_it_was_held_is_no_lock(tmp_path: Path) -> None:
    locks = NodeLocks(tmp_path)
    assert locks.try_acquire("node") is not None
    (tmp_path / "prepare.node.lock").unlink()
    second = locks.try_acquire("node")
    assert second is not None
    assert locks.try_acquire("node") is None


def test_of_many_that_take_at_once_one_gets_it(tmp_path: Path) -> None:
    start, taken = threading.Barrier(16), []

    def take() -> None:
        start.wait()
        taken.append(NodeLocks(tmp_path).try_acquire("node"))

    threads = [threading.Thread(target=take) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len([descriptor for descriptor in taken if descriptor is not None]) == 1
    assert [file.name for file in tmp_path.iterdir()] == ["prepare.node.lock"]


@pytest.mark.parametrize("kind", ["folder", "link", "fifo"])
def test_what_is_no_file_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "prepare.node.lock"
    if kind == "folder":
        path.mkdir()
    elif kind == "link":
        path.symlink_to(tmp_path / "elsewhere")
    else:
        os.mkfifo(path)
    with pytest.raises(UsageError) as caught:
        NodeLocks(tmp_path).try_acquire("node")
    assert caught.value.where == str(path)
    assert not (tmp_path / "elsewhere").exists()


class TestFolder:
    def test_the_first_that_is_open_to_all(
        self, tmp_path: Path, open_to_all: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("PREPARE_NODE_LOCKS")
        not_sticky = tmp_path / "not sticky"
        not_sticky.mkdir()
        not_sticky.chmod(0o777)
        folders = (tmp_path / "none", tmp_path, not_sticky, open_to_all)
        monkeypatch.setattr(node_locks, "FOLDERS", folders)
        assert lock_folder() == open_to_all

    def test_a_named_one_that_is_not_there(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PREPARE_NODE_LOCKS", str(tmp_path / "none"))
        with pytest.raises(UsageError) as caught:
            lock_folder()
        assert "PREPARE_NODE_LOCKS" in caught.value.where
