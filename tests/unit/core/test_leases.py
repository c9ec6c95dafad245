"""Claims: never two who publish, nothing lost, nothing half written; the dead are followed."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import pytest
from claimants import SECONDS, Claimant, Killed
from finished_stage import stage_record
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.core.errors import StoreError, UsageError
from pipeline.core.key_value_store import FileKeyValueStore, create_exclusively
from pipeline.core.leases import Leases, lease_seconds
from pipeline.core.process_identity import node_identity, start_ticks
from pipeline.core.run_folders import RunFolders
from pipeline.core.store import RECORD, Store, write_atomically

FILES = ("a", "b", "c")


# --- one owner after the other ------------------------------------------------------------------


@pytest.fixture
def claims(tmp_path: Path) -> Leases:
    return Leases(FileKeyValueStore(tmp_path), seconds=60)


def elsewhere(tmp_path: Path, now: list[float] | None = None, seconds: float = 60) -> Leases:
    """The same claims, seen by a process of another node, whose clock goes on while it waits."""
    time_is = [0.0] if now is None else now

    def sleep(seconds: float) -> None:
        time_is[0] += seconds

    return Leases(
        FileKeyValueStore(tmp_path),
        seconds=seconds,
        node="another",
        clock=lambda: time_is[0],
        sleep=sleep,
    )


def test_a_claim_is_had_by_one(claims: Leases) -> None:
    with claims.hold("key") as first:
        assert first.is_current()
        assert claims.is_held("key")
        with claims.hold_if_free("key") as second:
            assert second is None
        with claims.hold_if_free("other") as other:
            assert other is not None
    assert not claims.is_held("key")
    with claims.hold("key") as third:
        assert third.number == first.number + 1
        assert not first.is_current()


def test_a_forgotten_one_leaves_nothing(claims: Leases, tmp_path: Path) -> None:
    with claims.hold("key"):
        pass
    with claims.hold("key", forget=True):
        pass
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    with claims.hold("key") as again:
        assert again.number == 1


def test_old_generations_are_cleaned_up(claims: Leases, tmp_path: Path) -> None:
    for _ in range(5):
        with claims.hold("key"):
            pass
    assert {path.name for path in (tmp_path / "key").iterdir()} == {"000005", "000005.beat"}


def test_an_owner_elsewhere_is_waited_for_by_the_waiters_own_clock(
    claims: Leases, tmp_path: Path
) -> None:
    now, told = [1_000_000.0], list[str]()
    store = FileKeyValueStore(tmp_path)
    with claims.hold("key") as held:
        waiter = elsewhere(tmp_path, now)
        asleep = waiter._sleep

        def beat_twice(seconds: float) -> None:
            asleep(seconds)
            if now[0] > 1_000_040 and held.name and len(told) < 3:
                told.append("beat")
                assert held.send_heartbeat(len(told))

        waiter._sleep = beat_twice
        with waiter.hold("key", told.append) as follower:
            # 40 s of silence, two beats a second apart, and then silence for good.
            assert 1_000_100 <= now[0] < 1_000_105
            assert f"process {os.getpid()} on " in told[0]
            assert follower.number == held.number + 1
            assert not held.send_heartbeat(9)
    assert store.get(f"key/{follower.number:06d}.beat") == b"released"


def test_an_owner_on_this_node_is_waited_for_as_long_as_it_lives(
    claims: Leases, tmp_path: Path
) -> None:
    """Silent for an hour, as one that is stopped in a debugger; it lives, and that is known."""
    now, waits = [0.0], [0]

    def sleep(seconds: float) -> None:
        now[0] += 3600
        waits[0] += 1
        if waits[0] == 3:
            raise TimeoutError

    patient = Leases(FileKeyValueStore(tmp_path), seconds=60, clock=lambda: now[0], sleep=sleep)
    with claims.hold("key"), pytest.raises(TimeoutError), patient.hold("key"):
        pytest.fail("two hold one key")


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\x00"])
def test_a_claim_that_cannot_be_read_is_waited_for_too(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "key").mkdir()
    (tmp_path / "key" / "000004").write_bytes(content)
    now = [0.0]
    with elsewhere(tmp_path, now).hold("key") as claim:
        assert claim.number == 5
    assert now[0] >= 60


def test_whether_it_is_held_elsewhere_is_said_by_the_file_servers_clock(
    claims: Leases, tmp_path: Path
) -> None:
    other = elsewhere(tmp_path)
    with claims.hold("key") as held:
        assert other.is_held("key")
        old = time.time() - 59
        os.utime(tmp_path / held.name, (old, old))
        assert other.is_held("key")
        os.utime(tmp_path / held.name, (old - 2, old - 2))
        assert not other.is_held("key")
        assert held.send_heartbeat(1)
        assert other.is_held("key")
    assert not other.is_held("key")


def test_another_boot_or_another_container_is_another_node() -> None:
    assert len(node_identity()) == 64
    ticks = start_ticks(os.getpid())
    assert ticks
    with subprocess.Popen(["sleep", "60"]) as child:
        assert (start_ticks(child.pid) or 0) >= ticks
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert start_ticks(child.pid) is None  # a zombie does nothing any more
    assert start_ticks(child.pid) is None


@pytest.mark.parametrize("text", ["0", "1.9", "nan", "-60", "x", "1e9", "inf"])
def test_a_wrong_time_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("PREPARE_LEASE_SECONDS", text)
    with pytest.raises(UsageError) as caught:
        lease_seconds()
    assert "PREPARE_LEASE_SECONDS" in caught.value.where


def test_the_time_is_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    assert lease_seconds() == 60
    monkeypatch.setenv("PREPARE_LEASE_SECONDS", "15")
    assert lease_seconds() == 15


def test_of_many_who_create_one_name_one_can(tmp_path: Path) -> None:
    barrier, won = threading.Barrier(8), list[int]()

    def create(number: int) -> None:
        barrier.wait()
        if create_exclusively(tmp_path / "name", str(number).encode() * 1000, flush=False):
            won.append(number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert (tmp_path / "name").read_bytes() == str(won[0]).encode() * 1000
    assert [path.name for path in tmp_path.iterdir()] == ["name"]


def test_a_folder_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", refused)
    assert create_exclusively(tmp_path / "name", b"first", flush=True)
    assert not create_exclusively(tmp_path / "name", b"second", flush=True)
    assert (tmp_path / "name").read_bytes() == b"first"


class FullStore(FileKeyValueStore):
    """On a disk that becomes full."""

    is_full = False

    def put(self, name: str, content: bytes) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().put(name, content)


def test_on_a_disk_that_became_full_it_is_given_back_all_the_same(tmp_path: Path) -> None:
    store = FullStore(tmp_path)
    claims = Leases(store, seconds=60)
    with claims.hold("key"):
        store.is_full = True
    assert not claims.is_held("key")
    with claims.hold_if_free("key") as claim:
        assert claim is not None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a small disk")
def test_a_store_on_a_disk_that_is_full(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", disk]).returncode:
        pytest.skip("this machine lets nobody mount a small disk")
    try:
        store = Store(disk / "store")
        RunFolders(store).make("r")

        def write(size: int, key: str = "abc") -> None:
            with store.open_for_writing("judge", key) as folder:
                assert folder is not None
                (folder / "weights").write_bytes(b"x" * size)
                write_atomically(folder / RECORD, stage_record(key=key).model_dump_json())

        with pytest.raises(StoreError) as caught:
            write(10**6)
        assert str(disk) in caught.value.where
        assert store.find("judge", "abc") is None
        write(1000)
        assert store.find("judge", "abc") == stage_record()
        with pytest.raises(OSError, match="No space"):
            (disk / "filled").write_bytes(b"x" * 10**6)
        with pytest.raises(StoreError) as caught:
            write(1000, "b")
        assert str(disk) in caught.value.where
        store.discard("judge", "abc")  # so room can be made
        assert store.find("judge", "abc") is None
    finally:
        subprocess.run(["umount", disk], check=True)


# --- any order of steps -------------------------------------------------------------------------


def write_stage(makes_folders: bool, owner: Claimant, store: Store) -> None:
    """Do the stage as a worker does: file by file, with time in between, and the record last."""
    with store.open_for_writing("judge", "abc", ["a"]) as folder:
        if folder is None:
            return
        for name in FILES:
            owner.pause()
            if makes_folders:  # so that one who comes back finds a folder at its old path again
                folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(owner.name)
        owner.pause()
        write_atomically(
            folder / RECORD,
            stage_record().model_copy(update={"notes": [owner.name]}).model_dump_json(),
        )
        owner.pause()


class World:
    """A store, its owners, and one clock that a test moves."""

    def __init__(self, root: Path, owners: int, makes_folders: bool) -> None:
        self.root, self.now = root, 0.0
        self.makes_folders = makes_folders
        self.owners: list[Claimant] = []
        self.published: list[str] = []
        RunFolders(Store(root)).make("r")
        for _ in range(owners):
            self.add()

    def add(self) -> Claimant:
        number, skew = len(self.owners), 3600.0 * len(self.owners)

        def program(store: Store, owner: Claimant) -> None:
            write_stage(self.makes_folders, owner, store)

        owner = Claimant(self.root, f"owner{number}", program, lambda: self.now + skew)
        self.owners.append(owner)
        return owner

    def check(self) -> None:
        """What is there under its final name is whole, one owner's, and never another's later."""
        final = Store(self.root).stage_folder("judge", "abc")
        if not final.exists():
            assert not self.published, "a finished stage was lost"
            return
        record = Store(self.root).find("judge", "abc")
        assert record is not None
        writers = {*record.notes, *((final / name).read_text() for name in FILES)}
        assert len(writers) == 1, f"{writers} wrote one stage"
        if self.published != [*writers]:
            self.published += writers
        assert len(self.published) == 1, "two owners published"

    def follow(self, owner: Claimant, steps: int) -> None:
        """Let time go by in which only this one is alive, until it has the claim; then so far."""
        for _ in range(40):
            if owner.is_over or owner.leases.held is not None:
                break
            self.now += SECONDS / 2
            for _ in range(3):
                owner.step()
        for _ in range(steps):
            owner.step()
            self.check()

    def finish(self) -> None:
        """Let all go on, and one who is new; each reports from time to time."""
        newest = self.add()
        for _ in range(400):
            self.now += 7
            for owner in self.owners:
                owner.step()
                owner.beat()
                self.check()
            if newest.is_over and all(owner.is_over for owner in self.owners):
                return
        pytest.fail("they wait for each other")


ACTIONS = st.one_of(
    st.tuples(st.just("step"), st.integers(0, 3), st.integers(1, 6)),
    st.tuples(st.just("follow"), st.integers(0, 3), st.integers(0, 6)),
    st.tuples(st.just("beat"), st.integers(0, 3), st.just(0)),
    st.tuples(st.just("kill"), st.integers(0, 3), st.just(0)),
)


@pytest.fixture
def stepped_renames(monkeypatch: pytest.MonkeyPatch) -> dict[int, Claimant]:
    """Owners, by thread, stop before they rename a folder, too."""
    owners: dict[int, Claimant] = {}
    rename = Path.rename

    def stepped(self: Path, target: Path) -> Path:
        owner = owners.get(threading.get_ident())
        if owner is not None:
            owner.pause()
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", stepped)
    return owners


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    actions=st.lists(ACTIONS, min_size=4, max_size=16),
    owners=st.integers(2, 4),
    makes_folders=st.booleans(),
)
def test_any_order_of_steps_kills_and_silences(
    actions: list[tuple[str, int, int]],
    owners: int,
    makes_folders: bool,
    stepped_renames: dict[int, Claimant],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder) / "store", owners, makes_folders)
        stepped_renames.clear()
        stepped_renames.update({each.thread.ident or 0: each for each in world.owners})
        for action, number, steps in actions:
            owner = world.owners[number % owners]
            match action:
                case "follow":
                    world.follow(owner, steps)
                case "beat":
                    owner.beat()
                case "kill":
                    owner.kill()
                case "step":
                    for _ in range(steps):
                        owner.step()
                        world.check()
            world.check()
        world.finish()
        world.check()
        assert world.published
        for owner in world.owners:
            assert owner.error is None or isinstance(owner.error, StoreError | Killed), owner.error


def test_who_comes_back_to_a_folder_made_anew_publishes_nothing(tmp_path: Path) -> None:
    world = World(tmp_path / "store", 2, makes_folders=True)
    former, follower = world.owners
    while not (list((tmp_path / "store").rglob("a")) or former.is_over):
        former.step()
    world.follow(follower, 1)
    for _ in range(40):
        former.step()
        world.check()
    assert isinstance(former.error, StoreError)
    assert not world.published
    world.finish()
    assert world.published == ["owner1"]


def test_a_generation_that_was_had_and_cleaned_up_is_not_had_again(claims: Leases) -> None:
    with claims.hold("key"):
        pass
    seen = claims.read_latest("key")  # and then we are away
    with claims.hold("key"):
        pass
    with claims.hold("key") as third:
        assert claims._try_create("key", seen) is None
        assert third.is_current()


# --- real processes -----------------------------------------------------------------------------

HOLDER = """
import os, sys, time
from pathlib import Path
from finished_stage import stage_record
from pipeline.core.leases import Leases
from pipeline.core.errors import StoreError
from pipeline.core.key_value_store import FileKeyValueStore
from pipeline.core.store import Store, write_atomically

root, node = sys.argv[1:]
store = Store(Path(root))
store.leases = Leases(FileKeyValueStore(Path(root) / "leases"), node=node or None)
try:
    told = lambda text: print(text, flush=True)
    with store.open_for_writing("judge", "abc", waits=told) as folder:
        if folder is None:
            print("another process finished it", flush=True)
            sys.exit()
        (folder / "a").write_text(node)
        print("holds it", flush=True)
        sys.stdin.readline()
        (folder / "b").write_text(node)
        write_atomically(folder / "stage.json", stage_record().model_dump_json())
    print("finished it", flush=True)
except StoreError as error:
    print(f"lost it: {error.where}", flush=True)
"""


class Holder:
    """A process that has the stage, of this node or of one that it is told to be of."""

    def __init__(self, store: Store, node: str, seconds: str = "2") -> None:
        path = os.pathsep.join(
            [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(store.root), node],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PREPARE_LEASE_SECONDS": seconds, "PYTHONPATH": path},
        )

    def says(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def go_on(self) -> None:
        stdin: IO[str] | None = self.process.stdin
        assert stdin is not None
        stdin.write("\n")
        stdin.flush()

    def __enter__(self) -> Holder:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


def test_a_killed_owner_on_this_node_is_followed_at_once(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    with ExitStack() as processes:
        killed = processes.enter_context(Holder(store, "", seconds="3600"))
        assert killed.says() == "holds it"
        next_one = processes.enter_context(Holder(store, "", seconds="3600"))
        assert next_one.says().startswith(f"waiting for process {killed.process.pid} on ")
        killed.process.send_signal(signal.SIGKILL)
        killed.process.wait()
        died = time.monotonic()
        assert next_one.says() == "holds it"
        assert time.monotonic() - died < 5
        next_one.go_on()
        assert next_one.says() == "finished it"
    assert store.find("judge", "abc") == stage_record()


def test_an_owner_elsewhere_that_was_stopped_does_no_harm_when_it_comes_back(
    tmp_path: Path,
) -> None:
    store = Store(tmp_path / "store")
    with Holder(store, "there") as stopped:
        assert stopped.says() == "holds it"
        stopped.process.send_signal(signal.SIGSTOP)
        with Holder(store, "here") as next_one:
            assert next_one.says().startswith("waiting for process")
            assert next_one.says() == "holds it"
            stopped.process.send_signal(signal.SIGCONT)
            # Its heart notices, and ends what it does, which here would wait forever.
            assert stopped.says().startswith(f"lost it: process {next_one.process.pid} on ")
            assert store.find("judge", "abc") is None
            next_one.go_on()
            assert next_one.says() == "finished it"
    assert (store.stage_folder("judge", "abc") / "a").read_text() == "here"
    assert [path.name for path in (store.root / "stages" / "judge").iterdir()] == ["abc"]


def test_an_owner_elsewhere_that_is_heard_of_is_waited_for(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    with Holder(store, "there") as slow:
        assert slow.says() == "holds it"
        with Holder(store, "here") as waiter:
            assert waiter.says().startswith("waiting for process")
            time.sleep(3.5)  # nearly twice as long as a silent one would be waited for
            slow.go_on()
            assert slow.says() == "finished it"
            assert waiter.says() == "another process finished it"
