"""Control group (cgroup v2) of each program, which limits all its processes together."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

_PREFIX = "prepare-program-"
_NEEDED = {"memory", "pids"}
_OVERHEAD_BYTES = 32 * 2**20  # init, /tmp and kernel memory, on top of the program's limit
_EMPTY_TIMEOUT_S = 5.0


def find_parent(process: Path = Path("/proc/self")) -> Path | None:
    """Find where this process may make groups, if anywhere; remove a killed run's groups."""
    own = _own_group(process)
    for parent in [] if own is None else [own.parent, own]:
        try:
            _delegate(parent)
            _remove_stale(parent)
            with make(parent, 2 * _OVERHEAD_BYTES, 1):
                return parent
        except OSError:
            continue
    return None


@contextmanager
def make(parent: Path, memory_bytes: int, processes: int) -> Iterator[Path]:
    """Make a group whose memory limit kills all its processes."""
    with ExitStack() as stack:
        with _lock(parent):  # otherwise another run would remove it as stale
            folder = parent / (_PREFIX + os.urandom(8).hex())
            folder.mkdir(mode=0o700)
            stack.callback(_remove, folder)
            stack.enter_context(_lock(folder))
        for limit, amount in (
            ("memory.max", memory_bytes + _OVERHEAD_BYTES),
            ("memory.oom.group", 1),
            ("pids.max", processes),
        ):
            (folder / limit).write_text(str(amount))
        with suppress(FileNotFoundError):  # a kernel without swap
            (folder / "memory.swap.max").write_text("0")
        yield folder


def enter(folder: str) -> None:
    """Move this process into a group, if one is named."""
    if folder:
        Path(folder, "cgroup.procs").write_text("0")


def was_killed_for_memory(folder: str) -> bool:
    """Return whether the kernel killed a group for exceeding its memory limit."""
    events = dict(line.split() for line in _lines(Path(folder, "memory.events"))) if folder else {}
    return int(events.get("oom_kill", 0)) > 0


def _own_group(process: Path) -> Path | None:
    named = [line[3:] for line in _lines(process / "cgroup") if line.startswith("0::/")]
    for line in _lines(process / "mountinfo"):
        place, _, kind = line.partition(" - ")
        if not kind.startswith("cgroup2 ") or not named or ".." in named[0]:  # outside this mount
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
    control = parent / "cgroup.subtree_control"
    if not set(control.read_text().split()) >= _NEEDED:
        control.write_text(" ".join(f"+{name}" for name in sorted(_NEEDED)))


def _remove_stale(parent: Path) -> None:
    with _lock(parent):
        for folder in parent.glob(f"{_PREFIX}*"):
            with suppress(BlockingIOError), _lock(folder, fcntl.LOCK_NB):
                _remove(folder)


@contextmanager
def _lock(folder: Path, how: int = 0) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | how)
        yield
    finally:
        os.close(descriptor)


def _remove(folder: Path) -> None:
    with suppress(OSError):  # Linux 5.14
        (folder / "cgroup.kill").write_text("1")
    deadline = time.monotonic() + _EMPTY_TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError:  # its processes have not ended yet
            time.sleep(0.005)
        else:
            return
