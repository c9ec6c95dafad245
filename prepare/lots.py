"""Exclusive resources of this node: GPUs, all cores, or quiet.

Locks are files in a directory that every user can write to, held by `flock`. They are opened
read-only: in a sticky directory the kernel refuses O_CREAT on another user's file
(`fs.protected_regular`).

    node     shared by all work; exclusive for a CPU measurement, or with `quiet: node`
    gate     taken before `node`; a waiting measurement keeps it, so that later work waits
    cores    all cores
    gpus     held while GPUs are collected, so that the first process gets them first
    UUID     one GPU or MIG slice

Containers share locks only if they share the directory that $PREPARE_NODE_LOCKS names.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from prepare.errors import UsageError
from prepare.file_locks import hold_for_children, this_process, user_name
from prepare.gpus import VisibleGpu, allottable_gpus, busy_gpus
from prepare.untrusted import open_regular

FOLDERS = (Path("/run/lock"), Path("/dev/shm"), Path("/tmp"))  # noqa: S108
FOLDER_VARIABLE = "PREPARE_NODE_LOCKS"
GPUS_VARIABLE = "CUDA_VISIBLE_DEVICES"
FOR_ALL = stat.S_ISVTX | stat.S_IRWXU | stat.S_IRWXG | stat.S_IRWXO
NODE = "node"
GATE = "gate"
CORES = "cores"
GPUS = "gpus"
WHY = {
    NODE: "other work to end, as speed is measured on a quiet machine: ",
    GATE: "a speed measurement, which needs a quiet machine: ",
    CORES: "work that uses all cores: ",
}
POLL_S = 1.0
MAX_NOTE_BYTES = 300
Waits = Callable[[str], None]


@dataclass(frozen=True)
class Needs:
    """Exclusive resources of work: whole GPUs or MIG slices, or all cores."""

    gpus: int = 0
    cores: bool = False


NOTHING = Needs()


class _TakenError(Exception):
    """Another process has the lock, as the message describes."""


@dataclass
class Lot:
    """Held resources; CUDA_VISIBLE_DEVICES names `gpus` meanwhile."""

    node: Node
    share: int  # descriptor of the lock `node`
    gpus: list[VisibleGpu] = field(default_factory=list)
    has_cores: bool = False

    def covers(self, needs: Needs) -> bool:
        """Return whether work with these needs can have this lot."""
        return needs.gpus <= len(self.gpus) and (self.has_cores or not needs.cores)

    @contextmanager
    def quiet(self, on_wait: Waits = lambda text: None) -> Iterator[None]:
        """Hold the node exclusively, after other work has finished."""
        # Two lots that both wait would wait for each other's share.
        fcntl.flock(self.share, fcntl.LOCK_UN)
        with self.node.acquire(GATE, on_wait):
            # Our servers have copies of the descriptor, so the lock itself changes its kind.
            self.node.lock(self.share, NODE, on_wait)
        try:
            yield
        finally:
            fcntl.flock(self.share, fcntl.LOCK_SH)


class Node:
    """Resources of this node, shared by all users' runs."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or lock_folder()

    @cached_property
    def gpus(self) -> list[VisibleGpu]:
        """GPUs that work may have."""
        return allottable_gpus()

    def count_lots(self, needs: Needs) -> int:
        """Return how much such work fits on the idle node."""
        if needs.gpus > 1 and any(gpu.is_slice for gpu in self.gpus):
            return 0
        return len(self.gpus) // needs.gpus if needs.gpus else 1

    @contextmanager
    def take(
        self,
        needs: Needs,
        on_wait: Waits = lambda text: None,
        *,
        wait: bool = True,
    ) -> Iterator[Lot | None]:
        """Hold the resources until the block ends.

        Without `wait`, yield None if they are taken.
        """
        self._check(needs)
        with ExitStack() as held:
            held.enter_context(self._note())
            lot: Lot | None = None
            try:
                lot = self._take(needs, held, on_wait, wait=wait)
            except _TakenError as taken:
                on_wait(str(taken))
            if lot is None:
                held.close()
            yield lot

    def _take(self, needs: Needs, held: ExitStack, on_wait: Waits, *, wait: bool) -> Lot:
        if needs.cores:
            held.enter_context(self.acquire(CORES, on_wait, wait=wait))
        gpus: list[VisibleGpu] = []
        if needs.gpus:
            with self.acquire(GPUS, on_wait, wait=wait):
                self._collect_gpus(needs.gpus, gpus, held, on_wait, wait=wait)
        # Last: a measurement keeps its GPUs while it waits for all shares of the node.
        with self.acquire(GATE, on_wait, wait=wait):
            share = held.enter_context(self.acquire(NODE, on_wait, shared=True, wait=wait))
        if gpus:
            held.enter_context(_visible(gpus))
        return Lot(self, share, gpus, has_cores=needs.cores)

    def _collect_gpus(
        self,
        wanted: int,
        gpus: list[VisibleGpu],
        held: ExitStack,
        on_wait: Waits,
        *,
        wait: bool,
    ) -> None:
        is_told = False
        while True:
            others: list[str] = []
            busy = busy_gpus()
            for gpu in self.gpus:
                if len(gpus) == wanted:
                    return
                if gpu in gpus:
                    continue
                with ExitStack() as tried:
                    try:
                        tried.enter_context(self.acquire(gpu.uuid, wait=False))
                    except _TakenError as taken:
                        others.append(str(taken))
                        continue
                    if gpu.uuid in busy:
                        others.append(f"a program that uses {gpu.name} {gpu.uuid}")
                        continue
                    held.push(tried.pop_all())
                    gpus.append(gpu)
            if len(gpus) == wanted:
                return
            if not wait:
                raise _TakenError(others[0])
            if not is_told:
                on_wait(f"{wanted} GPUs, {len(gpus)} are free: {others[0]}")
            is_told = True
            time.sleep(POLL_S)

    def _check(self, needs: Needs) -> None:
        if needs.gpus and not self.count_lots(needs):
            sliced = any(gpu.is_slice for gpu in self.gpus)
            raise UsageError(
                f"{needs.gpus} GPUs are needed for one piece of work, and this node has "
                f"{len(self.gpus)}{' slices, of which it can use one' * sliced}",
                where=f"{GPUS_VARIABLE}={os.environ.get(GPUS_VARIABLE, '(not set)')}",
                hint="let CUDA see as many GPUs of one kind, or choose a profile for fewer",
            )

    @contextmanager
    def acquire(
        self,
        name: str,
        on_wait: Waits = lambda text: None,
        *,
        shared: bool = False,
        wait: bool = True,
    ) -> Iterator[int]:
        """Hold a lock, with children started meanwhile."""
        path = self._path(name)
        while True:
            descriptor = self._open(path)
            try:
                self.lock(descriptor, name, on_wait, shared=shared, wait=wait)
                if not _is_file(path, descriptor):
                    continue  # it was removed, so others cannot see this lock
                with hold_for_children(descriptor):
                    yield descriptor
                return
            finally:
                os.close(descriptor)

    def lock(
        self, descriptor: int, name: str, on_wait: Waits, *, shared: bool = False, wait: bool = True
    ) -> None:
        how = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        try:
            fcntl.flock(descriptor, how | fcntl.LOCK_NB)
        except BlockingIOError:
            if not wait:
                raise _TakenError(self.holder(name)) from None
            on_wait(f"{WHY.get(name, '')}{self.holder(name)}")
            fcntl.flock(descriptor, how)

    def holder(self, name: str) -> str:
        """Describe the lock's holder."""
        for pid in _lockers(self._path(name)):
            if pid == os.getpid():
                continue
            is_killed = not Path(f"/proc/{pid}").exists()
            killed = ", which was killed and whose last processes end" * is_killed
            with contextlib.suppress(OSError), open_regular(self._note_path(pid), None) as file:
                note = file.read(MAX_NOTE_BYTES).decode(errors="replace")
                if note.isprintable() and note:
                    return note + killed
            with contextlib.suppress(OSError):
                return f"process {pid} of {user_name(Path(f'/proc/{pid}').stat().st_uid)}"
            return f"process {pid}{killed}"
        return "another process"

    def _path(self, name: str) -> Path:
        return self.folder / f"prepare.{name.replace('/', '_')}.lock"

    def _note_path(self, pid: int) -> Path:
        return self.folder / f"prepare.holder.{pid}"

    @contextmanager
    def _note(self) -> Iterator[None]:
        """Describe this process's work to those who wait for its locks."""
        path = self._note_path(os.getpid())
        with contextlib.suppress(OSError):  # it is for messages alone
            path.unlink(missing_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as file:
                file.write(this_process())
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)

    def _open(self, path: Path) -> int:
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            while True:
                try:
                    descriptor = os.open(path, flags)
                except FileNotFoundError:
                    self._make(path)
                    continue
                if stat.S_ISREG(os.fstat(descriptor).st_mode):
                    return descriptor
                os.close(descriptor)
                raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        except OSError as error:
            raise UsageError(
                f"a lock of this node cannot be used: {error.strerror}",
                where=str(path),
                hint=f"remove it, or set {FOLDER_VARIABLE} to a directory that all users of this "
                "node can write to",
            ) from error

    def _make(self, path: Path) -> None:
        temporary, name = tempfile.mkstemp(prefix=f"{path.name}.", dir=self.folder)
        try:
            os.fchmod(temporary, 0o444)
            with contextlib.suppress(FileExistsError):
                os.link(name, path)
        finally:
            os.close(temporary)
            Path(name).unlink()


def lock_folder() -> Path:
    """Return the lock directory, or raise UsageError."""
    if named := os.environ.get(FOLDER_VARIABLE):
        if os.access(named, os.W_OK | os.X_OK) and Path(named).is_dir():
            return Path(named)
        raise UsageError(
            f"{FOLDER_VARIABLE} is not a writable directory",
            where=f"{FOLDER_VARIABLE}={named}",
            hint="create the directory with `mkdir -m 1777`, or unset the variable",
        )
    shared = (folder for folder in FOLDERS if _is_for_all(folder))
    return next(shared, Path(tempfile.gettempdir()))


@contextmanager
def _visible(gpus: list[VisibleGpu]) -> Iterator[None]:
    """Let workers and servers see only these GPUs."""
    before = os.environ.get(GPUS_VARIABLE)
    os.environ[GPUS_VARIABLE] = ",".join(gpu.uuid for gpu in gpus)
    try:
        yield
    finally:
        if before is None:
            del os.environ[GPUS_VARIABLE]
        else:
            os.environ[GPUS_VARIABLE] = before


def _lockers(path: Path) -> list[int]:
    """Return the processes in /proc/locks with the file's locks (proc_locks(5))."""
    try:
        facts = path.stat()
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return []
    device = f"{os.major(facts.st_dev):02x}:{os.minor(facts.st_dev):02x}:{facts.st_ino}"
    rows = [line.split() for line in lines]
    return [int(row[4]) for row in rows if len(row) == 8 and row[5] == device]


def _is_for_all(folder: Path) -> bool:
    try:
        mode = stat.S_IMODE(folder.stat().st_mode)
    except OSError:
        return False
    return mode & FOR_ALL == FOR_ALL and os.access(folder, os.W_OK)


def _is_file(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
