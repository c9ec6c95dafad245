"""A small parent for every process we start, so that nothing outlives us.

Run as ``python guard.py LIFELINE_FD[,FD...] GRACE_SECONDS COMMAND...`` in a session of its own. It
starts the command in its own process group and ends the whole group (SIGTERM, then SIGKILL after
the grace) as soon as the command ends, or the lifeline closes: the other end of that pipe is held
by whoever started us, and the kernel closes it however that process dies, SIGKILL included. What
other descriptors are named stay open until nothing of the group is left: locks of what it uses.

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
# Loaded beforehand: between fork and exec nothing may take a lock.
LIBC = ctypes.CDLL(None)
POLL_SECONDS = 0.05


def die_with_parent() -> None:
    """In a child before its program starts: be killed when the parent ends, however it ends."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def others_in_group() -> list[int]:
    """Process ids of our process group that still run, ourselves left out."""
    group, own, found = os.getpgrp(), os.getpid(), []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == own:
            continue
        with contextlib.suppress(OSError, IndexError, ValueError):
            # The command's name is in parentheses and may hold blanks; fields follow the last one.
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(fields[2]) == group and fields[0] != "Z":
                found.append(int(entry.name))
    return found


def end_group(grace_seconds: float) -> None:
    """SIGTERM, then after the grace SIGKILL, to every other process of our group."""
    deadline = time.monotonic() + grace_seconds
    for number in (signal.SIGTERM, signal.SIGKILL):
        while members := others_in_group():
            for pid in members:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            if number == signal.SIGTERM and time.monotonic() > deadline:
                break
            time.sleep(POLL_SECONDS * 4)


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


def guard(descriptors: list[int], grace_seconds: float, start: Callable[[], Child]) -> int:
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
    end_group(grace_seconds)
    if code is None:
        code = child.wait()
    return 128 - code if code < 0 else code


if __name__ == "__main__":
    named = [int(number) for number in sys.argv[1].split(",")]
    sys.exit(
        guard(
            named,
            float(sys.argv[2]),
            lambda: subprocess.Popen(sys.argv[3:], preexec_fn=die_with_parent, close_fds=False),
        )
    )
