"""Bare interpreter that forks a grading process for each program, to save its start."""

from __future__ import annotations

import gc
import os
import socket
import sys
from pathlib import Path
from typing import IO, NoReturn

from eval_gates.sandbox import linux_syscalls
from eval_gates.sandbox.grading import grade_program

_CODE_FOLDER = Path(__file__).resolve().parents[2]
_START = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from eval_gates.sandbox.fork_server import serve; serve(int(sys.argv[2]))"
)
_DESCRIPTORS = 3  # task, errors, report

# The whole environment of grading processes and programs. String hashes are fixed, because a
# solution may depend on a set's order. numpy's BLAS would allocate a buffer per core, which counts
# against the memory limit.
_ENVIRONMENT = {
    "PATH": os.defpath,
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",
    "OPENBLAS_NUM_THREADS": "1",
}


class ForkServer:
    """Client of the fork server; thread-safe."""

    def __init__(self, interpreter: str) -> None:
        import subprocess

        self._socket, server_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with server_end:
            self._process = subprocess.Popen(
                [interpreter, "-sPS", "-c", _START, str(_CODE_FOLDER), str(server_end.fileno())],
                cwd="/",
                env=_ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(server_end.fileno(),),
                start_new_session=True,
            )

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._process.kill()
        self._process.wait()

    def start(self, task: IO[bytes], errors: IO[bytes], report: int) -> None:
        """Fork a grading process with copies of the descriptors; OSError if the server ended."""
        socket.send_fds(self._socket, [b"judge"], [task.fileno(), errors.fileno(), report])


def serve(descriptor: int) -> NoReturn:
    """Fork a grading process for every message until the socket is closed."""
    me, code_folder = os.getpid(), sys.path.pop(0)
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
            grade_program(task, errors, report, parent=me, code_folder=code_folder)
        for end in received:
            os.close(end)


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            continue
    except ChildProcessError:
        return
