"""Forks of one interpreter that has imported everything, each under a guard of its own.

A new interpreter takes a quarter of a second before it does anything, a fork some milliseconds.
Here are both sides: :class:`Forks` starts that interpreter and asks it for forks, :func:`serve` is
what runs in it. It has one thread and does nothing but fork: a guard (pipeline.core.guard), in a
session of its own, which forks what does the work. All that a stage started by a command line has
is as there: environment, log, guard, lifeline, arguments to be read by `ps`.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, NoReturn

from pipeline.core.guard import die_with_parent, guard
from pipeline.core.process_environment import stage_environment
from pipeline.core.processes import (
    SLOW_GUARD_SECONDS,
    STOP_GRACE_SECONDS,
    held_here,
    hold_in_every_guard,
)

SERVER = "pipeline.cli.stage_forks"
MOST_DESCRIPTORS = 128
ROOM_FOR_TITLE = "_" * 1024  # an argument, over which a fork writes what it runs
KILLED = 128 + signal.SIGKILL
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Forks:
    """An interpreter that is forked for each piece of work; started with the first."""

    def __init__(self) -> None:
        self._starting = threading.Lock()
        self._control: socket.socket | None = None

    def warm(self) -> None:
        """Start that interpreter now; nobody waits until it has."""
        with self._starting:
            if self._control is None:
                self._control = self._start()

    def start(
        self,
        arguments: Sequence[str],
        *,
        environment: Mapping[str, str],
        errors: IO[bytes],
        held_descriptors: Sequence[int] = (),
    ) -> ForkedProcess:
        """Start `prepare` with these arguments, as :class:`GuardedProcess` would.

        Args:
            errors: receives standard error.
            held_descriptors: kept open by the guard until nothing of its group is left.
        """
        request = {"arguments": ["prepare", *arguments], "environment": dict(environment)}
        asked = os.memfd_create("request")
        output, lifeline, status = os.pipe(), os.pipe(), os.pipe()
        theirs = (asked, output[1], errors.fileno(), status[1], lifeline[0])
        try:
            os.write(asked, json.dumps(request).encode())
            self._send([*theirs, *held_descriptors, *held_here()])
        except BaseException:
            for descriptor in (output[0], lifeline[1], status[0]):
                os.close(descriptor)
            raise
        finally:
            for descriptor in (asked, output[1], status[1], lifeline[0]):
                os.close(descriptor)
        return ForkedProcess(output[0], lifeline[1], status[0])

    def _send(self, descriptors: list[int]) -> None:
        with self._starting:
            for _ in range(2):
                if self._control is None:
                    self._control = self._start()
                try:
                    socket.send_fds(self._control, [b"1"], descriptors)
                except (BrokenPipeError, ConnectionResetError):
                    self._control = None  # it was killed; what it had forked goes on
                else:
                    return
            raise ChildProcessError("the interpreter that stages are forked from does not start")

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            # -P: a folder called 'pipeline' in the working directory must not shadow ours.
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", SERVER, str(theirs.fileno()), ROOM_FOR_TITLE],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=stage_environment(os.environ, ""),
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        weakref.finalize(self, _end, ours, process)
        return ours


class ForkedProcess:
    """A running fork; it ends with all that it started when we end or `stop` is called."""

    def __init__(self, output: int, lifeline: int, status: int) -> None:
        self.output = os.fdopen(output, "rb")  # what it prints
        self._lifeline: int | None = lifeline
        self._status = status
        self._told = b""  # its process id, then its exit code, a line each
        self._is_over = False
        self._telling = threading.Lock()
        os.set_blocking(status, False)
        weakref.finalize(self, os.close, status)

    def wait(self) -> int:
        """Wait until nothing of it is left; the exit code as a shell gives it.

        It is 137 where its guard was killed.
        """
        while not self._is_over:
            self._look(None)
        lines = self._told.split()
        return int(lines[1]) if len(lines) > 1 else KILLED

    def stop(self) -> None:
        """End the whole group and wait until nothing of it is left; may be called again."""
        with self._telling:
            lifeline, self._lifeline = self._lifeline, None
        if lifeline is None:
            return
        os.close(lifeline)
        self._look(2 * STOP_GRACE_SECONDS + SLOW_GUARD_SECONDS)
        lines = self._told.split()
        if len(lines) == 1:  # the guard was killed, or is stuck
            with contextlib.suppress(ProcessLookupError):
                os.killpg(int(lines[0]), signal.SIGKILL)
            self._look(2 * STOP_GRACE_SECONDS + SLOW_GUARD_SECONDS)  # guards below it end theirs
        self.output.close()

    def _look(self, seconds: float | None) -> None:
        """Read what the guard tells, to its end or for so long; any number of threads may."""
        deadline = None if seconds is None else time.monotonic() + seconds
        poll = select.poll()
        poll.register(self._status, select.POLLIN)
        while not self._is_over:
            left = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
            if not poll.poll(left):
                return
            with self._telling, contextlib.suppress(BlockingIOError):
                told = os.read(self._status, 64)
                self._told += told
                self._is_over = not told


def serve(control: socket.socket, run: Callable[[], NoReturn]) -> NoReturn:
    """Fork for each request that comes, until the other side of the socket is closed.

    Args:
        run: reads `sys.argv`, and leaves by SystemExit.
    """
    set_title(["prepare: stages are forked from here"])
    gc.freeze()  # what is there already is looked at no more, and so not copied by a fork
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # guards tell themselves how it ended
    while True:
        message, descriptors, _, _ = socket.recv_fds(
            control, 1, MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
        )
        if not message:
            os._exit(0)
        if os.fork() == 0:
            control.close()
            _be_guard(descriptors, run)
        for descriptor in descriptors:
            os.close(descriptor)


def set_title(arguments: Sequence[str]) -> None:
    """Have `ps` show these as the process's arguments, as far as there is room for them."""
    # Fields 48 and 49 of proc(5); the command's name is in parentheses and may hold blanks.
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    title = b"\0".join(map(os.fsencode, arguments))[: max(0, end - start - 1)]
    if start:
        ctypes.memset(start, 0, end - start)
        ctypes.memmove(start, title, len(title))


def _be_guard(descriptors: list[int], run: Callable[[], NoReturn]) -> NoReturn:
    """In a fork: guard a further one, in which `run` runs."""
    asked, output, errors, status, lifeline, *held = descriptors
    kept = [status, *held]
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _tell(status, os.getpid())
    request = json.loads(os.pread(asked, os.fstat(asked).st_size, 0))
    own = os.getpid()

    def start() -> _Forked:
        child = os.fork()
        if child:
            for descriptor in (asked, output, errors):
                os.close(descriptor)
            set_title(["guard.py", *request["arguments"]])
            return _Forked(child)
        die_with_parent()
        if os.getppid() != own:  # it was killed before we asked for that
            os._exit(KILLED)
        os.dup2(output, 1)
        os.dup2(errors, 2)
        for descriptor in (asked, output, errors, lifeline):
            os.close(descriptor)
        hold_in_every_guard(kept)
        for number in SIGNALS:
            handler = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, handler)
        os.environ.clear()
        os.environ.update(request["environment"])
        sys.argv = request["arguments"]
        set_title(sys.argv)
        _end_with(run)

    code = guard([lifeline, *kept], STOP_GRACE_SECONDS, start)
    _tell(status, code)
    os._exit(code)


def _end_with(run: Callable[[], NoReturn]) -> NoReturn:
    """Run it and end as an interpreter does, but for taking itself apart.

    That would write to every page that the fork shares with what it was forked from, which takes
    longer than many a stage.
    """
    code: object = 1
    try:
        run()
    except SystemExit as end:
        code = 0 if end.code is None else end.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
    threading._shutdown()  # type: ignore[attr-defined]  # waits, as multiprocessing does, too
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code if isinstance(code, int) else 1)


def _tell(status: int, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # nobody is there to be told
        os.write(status, b"%d\n" % number)


class _Forked:
    """A fork of ours, as the guard watches it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        return self._look(os.WNOHANG)

    def wait(self) -> int:
        code = self._look(0)
        assert code is not None
        return code

    def _look(self, options: int) -> int | None:
        if self._code is None:
            found, status = os.waitpid(self.pid, options)
            self._code = os.waitstatus_to_exitcode(status) if found else None
        return self._code


def _end(control: socket.socket, process: subprocess.Popen[bytes]) -> None:
    """Close our side, upon which the other ends."""
    control.close()
    try:
        process.wait(SLOW_GUARD_SECONDS)
    except subprocess.TimeoutExpired:  # it is stopped
        process.kill()
        process.wait()
