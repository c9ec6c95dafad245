"""A small parent for every process we start, so that nothing outlives us.

Run as ``python guard.py LIFELINE_FD[,FD...] GRACE_SECONDS COMMAND...`` in a session of its own. It
starts the command in its own process group and ends the whole group (SIGTERM, then SIGKILL after
the grace) as soon as the command ends, or the lifeline closes: the other end of that pipe is held
by whoever started us, and the kernel closes it however that process dies, SIGKILL included. Then it
waits for what the group has left in sessions of their own, such as guards that it had started. What
other descriptors are named stay open until nothing of all that is left: locks of what it uses.

Standard library only: it is run by path with any interpreter.
"""

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
PARENT, GROUP = 1, 2  # fields of proc(5)'s stat after the command's name
# Loaded beforehand: between fork and exec nothing may take a lock.
LIBC = ctypes.CDLL(None)
POLL_SECONDS = 0.05


def die_with_parent() -> None:
    """In a child before its program starts: be killed when the parent ends, however it ends."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def find_running(field: int, number: int) -> list[int]:
    """Ids of processes, ourselves left out, that run and have the number in that field of stat."""
    own, found = os.getpid(), []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == own:
            continue
        with contextlib.suppress(OSError, IndexError, ValueError):
            # The command's name is in parentheses and may hold blanks; fields follow the last one.
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(fields[field]) == number and fields[0] != "Z":
                found.append(int(entry.name))
    return found


def find_group_members() -> list[int]:
    """Process ids of our process group that still run, ourselves left out."""
    return find_running(GROUP, os.getpgrp())


def end_group(grace_seconds: float) -> None:
    """SIGTERM, then after the grace SIGKILL, to every other process of our group."""
    deadline = time.monotonic() + grace_seconds
    for number in (signal.SIGTERM, signal.SIGKILL):
        while members := find_group_members():
            for pid in members:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            if number == signal.SIGTERM and time.monotonic() > deadline:
                break
            time.sleep(POLL_SECONDS * 4)


def become_subreaper() -> bool:
    """From now on, have whatever a descendant of ours leaves behind for a child of our own.

    Whether the kernel does that.
    """
    return bool(LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1) == 0)


def has_children() -> bool:
    """Whether a child of ours is left that runs, or has not been waited for."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def end_children(grace_seconds: float) -> None:
    """SIGTERM, once, then after the grace SIGKILL, to every child that is left; see them gone."""
    deadline, told = time.monotonic() + grace_seconds, set[int]()
    while True:
        try:
            ended, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if ended:
            continue
        is_late = time.monotonic() > deadline
        for pid in find_running(PARENT, os.getpid()):
            if is_late or pid not in told:
                told.add(pid)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL if is_late else signal.SIGTERM)
        time.sleep(POLL_SECONDS)


def watch_end(pid: int) -> list[int]:
    """A descriptor that can be read once the child has ended; none where the kernel has no such."""
    try:
        return [os.pidfd_open(pid)]
    except (AttributeError, OSError):
        return []


class Child(Protocol):
    """A process that was started, as subprocess.Popen is one."""

    pid: int

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""

    def wait(self) -> int:
        """Wait for its end; its exit code."""


def supervise(descriptors: list[int], grace_seconds: float, start: Callable[[], Child]) -> int:
    """Run what `start` starts to its end or the lifeline's; its exit code as a shell gives it.

    Args:
        descriptors: the lifeline, and what else a program that is started is not to inherit.
    """
    lifeline, asked_to_stop = descriptors[0], False

    def stop(number: int, frame: object) -> None:
        nonlocal asked_to_stop
        asked_to_stop = True

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)
    # The command inherits whatever descriptors it was meant to get, but none of these.
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    adopts = become_subreaper()
    try:
        child = start()
    except OSError as error:
        print(f"cannot start {error.filename}: {error.strerror}", file=sys.stderr)
        return 127
    ended = watch_end(child.pid)
    while child.poll() is None and not asked_to_stop:
        ready, _, _ = select.select([lifeline, *ended], [], [], POLL_SECONDS)
        if lifeline in ready and not os.read(lifeline, 1):
            break
    code = child.poll()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # All that it has left would be our children: to look through all processes takes a while.
    if code is None or not adopts or has_children():
        end_group(grace_seconds)
        if code is None:
            code = child.wait()
        end_children(grace_seconds)
    return 128 - code if code < 0 else code


if __name__ == "__main__":
    named = [int(number) for number in sys.argv[1].split(",")]
    sys.exit(
        supervise(
            named,
            float(sys.argv[2]),
            lambda: subprocess.Popen(sys.argv[3:], preexec_fn=die_with_parent, close_fds=False),
        )
    )
