"""Worker processes that stay: one request after another, in an environment that is imported once.

A load generator imports vLLM for 10 to 25 seconds, and the worker that asks a suite transformers
and lm-eval for 4. Each would otherwise start for every block and suite.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from prepare import worker_protocol
from prepare.events import (
    ANSWERED,
    EVENTS_FD_VARIABLE,
    TAKEN,
    Progress,
    forward_progress,
    read_event,
)
from prepare.file_locks import held_descriptors
from prepare.interruption import hold_interruptions
from prepare.private_files import open_log
from prepare.supervisor import SupervisedProcess

BOOTSTRAP = Path(worker_protocol.__file__)
UNEXPECTED = 1  # exit code of a process that takes no request at all


@dataclass(frozen=True)
class WorkerFiles:
    """Files of a request; the worker appends to its log."""

    spec: Path
    result: Path
    output: Path
    log: Path


@dataclass(frozen=True)
class WorkerStart:
    """What a process starts with: processes that start alike are the same one."""

    python: Path
    variables: frozenset[tuple[str, str]]

    @classmethod
    def of(cls, python: str, variables: Mapping[str, str]) -> WorkerStart:
        return cls(Path(python), frozenset(variables.items()))


class StayingWorker:
    """A worker process that takes requests."""

    def __init__(self, start: WorkerStart, log: Path) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        events_read, events_write = os.pipe()
        self._channel = ours
        self._events = os.fdopen(events_read, "rb")
        variables = {**dict(start.variables), EVENTS_FD_VARIABLE: str(events_write)}
        try:
            with open_log(log) as output:
                self._process = SupervisedProcess(
                    [
                        str(start.python),
                        str(BOOTSTRAP),
                        worker_protocol.STAY,
                        str(theirs.fileno()),
                    ],
                    environment=variables,
                    output=output,
                    pass_descriptors=[events_write, theirs.fileno()],
                )
        except BaseException:
            self._events.close()
            ours.close()
            raise
        finally:
            os.close(events_write)
            theirs.close()

    def warm(self, module: str, log: Path) -> None:
        """Have the module made ready; do not wait for it."""
        self._send({"warm": module, "log": str(log)})

    def call_worker(self, worker: str, files: WorkerFiles, progress: Progress) -> int | None:
        """Have a request answered; return 0, or the exit code of a process that died of it.

        None: it had died before it took the request. The process holds this one's locks until it
        has answered.
        """
        request = {"worker": worker, **{name: str(path) for name, path in vars(files).items()}}
        self._send(request)
        is_taken = False
        for line in self._events:
            event = read_event(line)
            if event.get("event") == ANSWERED:
                return 0
            is_taken |= event.get("event") == TAKEN
            forward_progress(event, progress)
        return self._process.wait() if is_taken else None

    def end(self) -> None:
        """End the process and what it started."""
        self._channel.close()
        self._process.stop()
        self._events.close()

    def _send(self, request: Mapping[str, str]) -> None:
        try:
            socket.send_fds(self._channel, [json.dumps(request).encode()], held_descriptors())
        except (BrokenPipeError, ConnectionResetError):
            return  # it has died, as who reads its events finds


class StayingWorkers:
    """A process's staying workers."""

    def __init__(self) -> None:
        self._workers: dict[WorkerStart, StayingWorker] = {}

    def warm(self, module: str, start: WorkerStart, log: Path) -> None:
        """Have a worker made ready, unless there is one that is."""
        if start not in self._workers:
            self._open(start, log)
            self._workers[start].warm(module, log)

    def call_worker(
        self, worker: str, start: WorkerStart, files: WorkerFiles, progress: Progress
    ) -> int:
        """Have a request answered; end a process that died or was interrupted."""
        code = None
        if start in self._workers:
            code = self._try(worker, start, files, progress)
        if code is None:
            self._open(start, files.log)
            code = self._try(worker, start, files, progress)
        return UNEXPECTED if code is None else code

    def _try(
        self, worker: str, start: WorkerStart, files: WorkerFiles, progress: Progress
    ) -> int | None:
        code = None
        try:
            code = self._workers[start].call_worker(worker, files, progress)
        finally:
            if code != 0:
                self._end(start)
        return code

    def end(self) -> None:
        """End all."""
        for start in list(self._workers):
            self._end(start)

    def _open(self, start: WorkerStart, log: Path) -> None:
        self._workers[start] = StayingWorker(start, log)

    def _end(self, start: WorkerStart) -> None:
        with hold_interruptions():
            process = self._workers.pop(start, None)
            if process is not None:
                process.end()
