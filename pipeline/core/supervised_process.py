"""Child processes that end with this process, each in a session under pipeline.core.supervisor."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

SUPERVISOR = Path(__file__).with_name("supervisor.py")
STOP_GRACE_SECONDS = 10.0
SUPERVISOR_GRACE_S = 10.0
POLL_SECONDS = 0.05


class SupervisedProcess:
    """A running command whose process group ends when it, this process or `stop` ends it.

    Args:
        held_descriptors: locks that stay open until the whole group has ended; not inherited.
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
        held_descriptors: Sequence[int] = (),
        grace_seconds: float = STOP_GRACE_SECONDS,
    ) -> None:
        lifeline_read, lifeline_write = os.pipe()
        held = list(held_descriptors)
        try:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-I",
                    str(SUPERVISOR),
                    ",".join(map(str, [lifeline_read, *held])),
                    str(grace_seconds),
                    *command,
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
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
        """Process id of the supervisor, also the process group's id."""
        return self._process.pid

    @property
    def output(self) -> IO[bytes]:
        if self._process.stdout is None:
            raise ValueError("the process was not started with a pipe")
        return self._process.stdout

    def poll(self) -> int | None:
        """Return the exit code as a shell reports it, or None; do not reap the process."""
        if self._exit_code is None:
            self._poll_exit(os.WNOHANG)
        return self._exit_code

    def wait(self) -> int:
        while self._exit_code is None:
            self._poll_exit(0)
        return self._exit_code

    def stop(self) -> None:
        """End the whole group and wait for it; further calls do nothing."""
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
        found = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT | options)
        if found is not None:
            killed = found.si_code != os.CLD_EXITED
            self._exit_code = found.si_status + (128 if killed else 0)

    def __enter__(self) -> SupervisedProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
