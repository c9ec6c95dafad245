"""A bare interpreter that forks a judge for every program, which is faster than to start one.

Forked before any of a solution's code was near, every judge starts from the same clean state. It
ends when its socket is closed, and its judges with it: no process outlives whoever asked for it.
"""

from __future__ import annotations

import gc
import os
import socket
import sys
from pathlib import Path
from typing import IO, NoReturn

from eval_gates.sandbox import linux_syscalls
from eval_gates.sandbox.grading import judge

_OWN_CODE = Path(__file__).resolve().parents[2]
_START = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from eval_gates.sandbox.fork_server import serve; serve(int(sys.argv[2]))"
)
_DESCRIPTORS = 3  # task, errors, report

# A judge's whole environment, and its program's. Strings hash alike in every run, or a solution
# that depends on a set's order would pass for one model and fail for the next; numpy's BLAS would
# claim a buffer for each of many cores out of the memory limit.
_ENVIRONMENT = {
    "PATH": os.defpath,
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",
    "OPENBLAS_NUM_THREADS": "1",
}


class ForkServer:
    """The server as its owner sees it; safe from several threads."""

    def __init__(self, interpreter: str) -> None:
        import subprocess

        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [interpreter, "-sPS", "-c", _START, str(_OWN_CODE), str(theirs.fileno())],
                cwd="/",
                env=_ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._process.kill()
        self._process.wait()

    def start(self, task: IO[bytes], errors: IO[bytes], report: int) -> None:
        """Fork a judge; it takes copies of the descriptors.

        Args:
            task: what to judge, see :func:`eval_gates.sandbox.grading.judge`.
            errors: takes what judge and solution write to standard error.
            report: the end of a pipe that the judge writes to.

        Raises:
            OSError: the server is gone.
        """
        socket.send_fds(self._socket, [b"judge"], [task.fileno(), errors.fileno(), report])


def serve(descriptor: int) -> NoReturn:
    """Fork a judge for every message, until the socket is closed."""
    me, own_code = os.getpid(), sys.path.pop(0)
    orders = socket.socket(fileno=descriptor)
    orders.set_inheritable(False)
    linux_syscalls.leave_session_keyring()
    # A collection in a fork would copy every page that holds an object.
    gc.collect()
    gc.freeze()
    while True:
        message, received, _, _ = socket.recv_fds(orders, 16, _DESCRIPTORS)
        if not message:
            os._exit(0)
        _reap()
        if os.fork() == 0:
            orders.close()
            task, errors, report = received
            judge(task, errors, report, parent=me, own_code=own_code)
        for each in received:
            os.close(each)


def _reap() -> None:
    """Forget judges that have ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            continue
    except ChildProcessError:
        return
