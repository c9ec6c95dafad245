"""A control group (cgroup v2) for each program, which limits all that its processes hold together.

Beside what they map, the kernel counts in one the files in memory, the buffers of pipes and
sockets, and its own tables. A group is a folder; whoever may make one beside or below their own
needs no other rights. It is removed when its program has ended, or by the next run if ours was
killed.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

_PREFIX = "prepare-program-"
_NEEDED = {"memory", "pids"}
_BESIDE_BYTES = 32 * 2**20  # the keeper, /tmp and the kernel's own, for no right program to miss
_SECONDS_TO_EMPTY = 5.0


def find_parent(process: Path = Path("/proc/self")) -> Path | None:
    """Where this process may make groups that limit memory and processes; None if nowhere.

    Groups that a killed run left there are removed.

    Args:
        process: the folder that tells of this process.
    """
    own = _own(process)
    for parent in [] if own is None else [own.parent, own]:
        try:
            _delegate(parent)
            _remove_stale(parent)
            with make(parent, 2 * _BESIDE_BYTES, 1):
                return parent
        except OSError:
            continue
    return None


@contextmanager
def make(parent: Path, memory_bytes: int, processes: int) -> Iterator[Path]:
    """A group that holds its processes to these limits, and none of them outlives it.

    Whoever takes more memory is killed with all others in it.

    Raises:
        OSError: no such group can be made here.
    """
    with ExitStack() as stack:
        with _hold(parent):  # or another run would take it for one that was left
            folder = parent / (_PREFIX + os.urandom(8).hex())
            folder.mkdir(mode=0o700)
            stack.callback(_remove, folder)
            stack.enter_context(_hold(folder))
        for limit, amount in (
            ("memory.max", memory_bytes + _BESIDE_BYTES),
            ("memory.oom.group", 1),
            ("pids.max", processes),
        ):
            (folder / limit).write_text(str(amount))
        with suppress(FileNotFoundError):  # a kernel without swap
            (folder / "memory.swap.max").write_text("0")
        yield folder


def enter(folder: str) -> None:
    """Move this process into a group, if one is named; its children begin there."""
    if folder:
        Path(folder, "cgroup.procs").write_text("0")


def killed_for_memory(folder: str) -> bool:
    """Whether the kernel has killed processes of a group for the memory they took."""
    events = dict(line.split() for line in _lines(Path(folder, "memory.events"))) if folder else {}
    return int(events.get("oom_kill", 0)) > 0


def _own(process: Path) -> Path | None:
    """The folder of this process's group, where it is mounted."""
    named = [line[3:] for line in _lines(process / "cgroup") if line.startswith("0::/")]
    for line in _lines(process / "mountinfo"):
        place, _, kind = line.partition(" - ")
        if not kind.startswith("cgroup2 ") or not named or ".." in named[0]:  # beyond what we see
            continue
        top, mounted = place.split()[3:5]
        if Path(named[0]).is_relative_to(top):
            return Path(mounted, Path(named[0]).relative_to(top))
    return None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _delegate(parent: Path) -> None:
    """Have the groups in `parent` limit what we need.

    Raises:
        OSError: it is not ours, or holds processes itself.
    """
    control = parent / "cgroup.subtree_control"
    if not set(control.read_text().split()) >= _NEEDED:
        control.write_text(" ".join(f"+{name}" for name in sorted(_NEEDED)))


def _remove_stale(parent: Path) -> None:
    with _hold(parent):
        for folder in parent.glob(f"{_PREFIX}*"):
            with suppress(BlockingIOError), _hold(folder, fcntl.LOCK_NB):
                _remove(folder)


@contextmanager
def _hold(folder: Path, how: int = 0) -> Iterator[None]:
    """Hold a folder's lock, which the kernel drops when we end."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | how)
        yield
    finally:
        os.close(descriptor)


def _remove(folder: Path) -> None:
    """End what is left in a group, and the group; the next run tries again what fails here."""
    with suppress(OSError):  # Linux 5.14
        (folder / "cgroup.kill").write_text("1")
    deadline = time.monotonic() + _SECONDS_TO_EMPTY
    while time.monotonic() < deadline:
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError:  # its processes are still about to end
            time.sleep(0.005)
        else:
            return
