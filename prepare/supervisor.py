"""Child processes that end with prepare, each under a small supervisor.

``python supervisor.py LIFELINE_FD[,FD...] GRACE_SECONDS FOLDER COMMAND...`` ends the command's
process group (SIGTERM, then SIGKILL) when the command ends or the lifeline pipe closes. It then
waits for descendants in other sessions, and removes the folder ('' for none). Other descriptors are
locks, open until no descendant is left.
Standard library only: any interpreter runs it by path.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Protocol

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
PARENT = 1
GROUP = 2  # fields of /proc/PID/stat after the command name
# Loaded in advance: no lock may be taken between fork and exec.
LIBC = ctypes.CDLL(None)
POLL_SECONDS = 0.05
STOP_GRACE_SECONDS = SUPERVISOR_GRACE_S = 10.0


def die_with_parent() -> None:
    """End this child with its parent."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def find_running(field: int, number: int) -> list[int]:
    """Return processes with this number in a field of stat."""
    own = os.getpid()
    pids = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == own:
            continue
        with contextlib.suppress(OSError, IndexError, ValueError):
            # The command name is in parentheses and can contain spaces; fields follow the last one.
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(fields[field]) == number and fields[0] != "Z":
                pids.append(int(entry.name))
    return pids


def end_group(grace_seconds: float) -> None:
    """Send SIGTERM, then SIGKILL, to this group."""
    deadline = time.monotonic() + grace_seconds
    for number in (signal.SIGTERM, signal.SIGKILL):
        while members := find_running(GROUP, os.getpgrp()):
            for pid in members:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            if number == signal.SIGTERM and time.monotonic() > deadline:
                break
            time.sleep(POLL_SECONDS * 4)


def has_children() -> bool:
    """Return whether any child is unreaped."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def end_children(grace_seconds: float) -> None:
    """Send SIGTERM, then SIGKILL, to each child; reap all."""
    deadline = time.monotonic() + grace_seconds
    signaled = set[int]()
    while True:
        try:
            ended, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if ended:
            continue
        is_late = time.monotonic() > deadline
        for pid in find_running(PARENT, os.getpid()):
            if is_late or pid not in signaled:
                signaled.add(pid)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL if is_late else signal.SIGTERM)
        time.sleep(POLL_SECONDS)


def watch_end(pid: int) -> list[int]:
    """Return a descriptor that the child's end makes readable, if supported."""
    try:
        return [os.pidfd_open(pid)]
    except (AttributeError, OSError):
        return []


class Child(Protocol):
    """Started process with the interface of subprocess.Popen."""

    pid: int

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal, or None."""

    def wait(self) -> int:
        """Wait for the end; return the exit code."""


def supervise(descriptors: list[int], grace_seconds: float, start: Callable[[], Child]) -> int:
    """Run the child until it or the lifeline ends; return a shell's exit code.

    The child inherits no `descriptors`; the first is the lifeline.
    """
    lifeline = descriptors[0]
    asked_to_stop = False

    def stop(number: int, frame: object) -> None:
        nonlocal asked_to_stop
        asked_to_stop = True

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)
    # The command inherits other descriptors, but none of these.
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    # Orphaned descendants become children of this process.
    adopts = LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1) == 0
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
    # Orphans are our children; scanning all processes is slow.
    if code is None or not adopts or has_children():
        end_group(grace_seconds)
        if code is None:
            code = child.wait()
        end_children(grace_seconds)
    return 128 - code if code < 0 else code


class SupervisedProcess:
    """A command whose group ends when it, this process or `stop` ends it.

    `held_descriptors` are locks, open until the group has ended. Then `temporary` is removed, even
    if this process was killed.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        output: IO[bytes] | int,
        pass_descriptors: Sequence[int] = (),
        held_descriptors: Sequence[int] = (),
        temporary: Path | None = None,
        grace_seconds: float = STOP_GRACE_SECONDS,
    ) -> None:
        lifeline_read, lifeline_write = os.pipe()
        held = list(held_descriptors)
        try:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-I",
                    __file__,
                    ",".join(map(str, [lifeline_read, *held])),
                    str(grace_seconds),
                    str(temporary or ""),
                    *command,
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                pass_fds=[lifeline_read, *held, *pass_descriptors],
                start_new_session=True,
            )
        except BaseException:
            os.close(lifeline_write)
            raise
        finally:
            os.close(lifeline_read)
        self._lifeline: int | None = lifeline_write
        self._grace_seconds = grace_seconds
        self._exit_code: int | None = None

    @property
    def pid(self) -> int:
        """Id of supervisor and process group."""
        return self._process.pid

    @property
    def output(self) -> IO[bytes]:
        if self._process.stdout is None:
            raise ValueError("the process was not started with a pipe")
        return self._process.stdout

    def poll(self) -> int | None:
        """Return a shell's exit code, or None; reap nothing."""
        if self._exit_code is None:
            self._poll_exit(os.WNOHANG)
        return self._exit_code

    def wait(self) -> int:
        while self._exit_code is None:
            self._poll_exit(0)
        return self._exit_code

    def stop(self) -> None:
        """End the group and wait for it."""
        if self._lifeline is None:
            return
        os.close(self._lifeline)
        self._lifeline = None
        deadline = time.monotonic() + 2 * self._grace_seconds + SUPERVISOR_GRACE_S
        while self.poll() is None and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        # The group is empty unless the supervisor was killed or is stuck. Its id cannot be
        # reused until it is reaped.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _poll_exit(self, options: int) -> None:
        exited = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT | options)
        if exited is not None:
            killed = exited.si_code != os.CLD_EXITED
            self._exit_code = exited.si_status + (128 if killed else 0)

    def __enter__(self) -> SupervisedProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


if __name__ == "__main__":
    named = [int(number) for number in sys.argv[1].split(",")]
    exit_code = supervise(
        named,
        float(sys.argv[2]),
        lambda: subprocess.Popen(sys.argv[4:], preexec_fn=die_with_parent, close_fds=False),
    )
    if sys.argv[3]:
        shutil.rmtree(sys.argv[3], ignore_errors=True)
    sys.exit(exit_code)
