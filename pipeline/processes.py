"""Starts processes that end with us: each in a session of its own, under pipeline.guard."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO

GUARD = Path(__file__).with_name("guard.py")
STOP_GRACE_SECONDS = 10.0


class GuardedProcess:
    """A running command whose whole process group ends when it ends, we end, or `stop` is called.

    Args:
        command: program and arguments; no shell.
        environment: the whole environment of the process.
        output: receives standard output and standard error, unless `errors` takes the latter.
        errors: receives standard error.
        pass_descriptors: inherited file descriptors.
        grace_seconds: between SIGTERM and SIGKILL.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        output: IO[bytes] | int,
        errors: IO[bytes] | int = subprocess.STDOUT,
        pass_descriptors: Sequence[int] = (),
        grace_seconds: float = STOP_GRACE_SECONDS,
    ) -> None:
        lifeline_read, lifeline_write = os.pipe()
        try:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-I",
                    str(GUARD),
                    str(lifeline_read),
                    str(grace_seconds),
                    *command,
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                env=dict(environment),
                pass_fds=[lifeline_read, *pass_descriptors],
                start_new_session=True,
            )
        except BaseException:
            os.close(lifeline_write)
            raise
        finally:
            os.close(lifeline_read)
        self._lifeline: int | None = lifeline_write
        self._grace_seconds = grace_seconds

    @property
    def pid(self) -> int:
        """Process id of the guard, which is also the id of the process group."""
        return self._process.pid

    @property
    def output(self) -> IO[bytes]:
        """What the process prints, when it was started with a pipe."""
        if self._process.stdout is None:
            raise ValueError("the process was not started with a pipe")
        return self._process.stdout

    def poll(self) -> int | None:
        """Exit code, or None while it runs."""
        return self._process.poll()

    def wait(self, timeout: float | None = None) -> int:
        """Exit code; raises subprocess.TimeoutExpired after `timeout` seconds."""
        return self._process.wait(timeout)

    def stop(self) -> None:
        """End the whole group and wait until nothing of it is left."""
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None
        self._process.wait(self._grace_seconds + 20)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def __enter__(self) -> GuardedProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
