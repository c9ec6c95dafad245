"""What a driver has on a node of a Ray cluster: an agent, which does its pieces of work there.

One process does them all, forked from one interpreter. A worker of Ray's for each, with an
interpreter of its own to fork from, takes longer to start than many a stage lasts. When the driver
is gone Ray ends its agents, and the guards what these have started.
"""

from __future__ import annotations

import os
import platform
import select
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.core.hardware import this_node
from pipeline.core.node_address import VARIABLE as NODE_ADDRESS
from pipeline.core.origin_variable import ORIGIN
from pipeline.core.private_files import keep_private
from pipeline.core.process_environment import Need, arrived_environment, stage_environment
from pipeline.run.executors.forks import KILLED, ForkedProcess, Forks
from pipeline.run.executors.ray_logs import SentLog, UnsentLogs
from pipeline.run.executors.stage_process import refuse_other, stage_in, start

SECONDS_BETWEEN_LOOKS = 0.2
SECONDS_BETWEEN_LOGS = 1.0
CHUNK_BYTES = 1 << 16


@dataclass(frozen=True)
class TaskFile:
    """The file of a piece of work, as the driver has it.

    Attributes:
        content: which is not on this node where only an object store is shared; then the logs of
            the work are sent, too.
        written: when, in ns. A copy that an earlier agent left there has another time.
    """

    path: str
    content: bytes
    written: int


@dataclass(frozen=True)
class _Work:
    has_begun: threading.Event = field(default_factory=threading.Event)
    is_to_end: threading.Event = field(default_factory=threading.Event)
    is_over: threading.Event = field(default_factory=threading.Event)


class NodeAgent:
    """Does pieces of work on its node, each as a guarded child, several at a time."""

    def __init__(self) -> None:
        self._forks = Forks()
        self._forks.warm()
        self._works: dict[str, _Work] = {}
        self._logs = UnsentLogs(f"{platform.node()}, process {os.getpid()}")

    def greet(self, prepare: str) -> None:
        """Answer, which tells that it is there; raises StageError where the driver's is another."""
        refuse_other(prepare)

    def describe(self, prepare: str, given: Mapping[str, str]) -> str:
        """What the node is, as JSON; raises StageError where the driver's prepare is another.

        Args:
            given: variables that came with the question.
        """
        refuse_other(prepare)
        variables = {**os.environ, **given}
        if not variables.get("CUDA_VISIBLE_DEVICES"):
            variables.pop("CUDA_VISIBLE_DEVICES", None)  # some Rays hide all from who has none
        return this_node(variables).model_dump_json()

    def run(
        self, name: str, task: TaskFile, log: str, given: Mapping[str, str]
    ) -> Iterator[bytes | SentLog | int]:
        """Do the work that the file describes; its events as lines, then its exit code.

        Args:
            name: of this try, for `end`.
            given: variables that came with it.
        """
        work = self._works.setdefault(name, _Work())
        work.has_begun.set()
        try:
            if not work.is_to_end.is_set():
                yield from self._do(work, task, Path(log), given)
        finally:
            work.is_over.set()
            self._works.pop(name, None)

    def end(self, name: str) -> None:
        """End that try and all that it started, and wait until that has ended."""
        work = self._works.setdefault(name, _Work())
        work.is_to_end.set()
        if work.has_begun.is_set():  # else it never will
            work.is_over.wait()

    def _do(
        self, work: _Work, task: TaskFile, log: Path, given: Mapping[str, str]
    ) -> Iterator[bytes | SentLog | int]:
        file, variables = Path(task.path), arrived_environment(_variables_of_node(), given)
        is_shared = not given.get(ORIGIN) or is_there(task)
        run = file.parents[1]
        if not is_shared:
            place_task(task)
            self._logs.skip(run)
        # The node may have to build the stage's environment first.
        variables = stage_environment(variables, stage_in(file), [Need.PACKAGES])
        process = start(self._forks, file, log, variables)
        try:
            sent = time.monotonic()
            for line in _lines_of(process):
                if work.is_to_end.is_set():
                    process.stop()
                    break
                if line:
                    yield line
                if not is_shared and time.monotonic() - sent >= SECONDS_BETWEEN_LOGS:
                    yield from self._logs.take(run)
                    sent = time.monotonic()
            code = KILLED if work.is_to_end.is_set() else process.wait()
            if not is_shared:
                yield from self._logs.take(run)
            yield code
        finally:
            process.stop()
            if not is_shared:
                file.unlink(missing_ok=True)


def is_there(task: TaskFile) -> bool:
    """Whether this node sees the driver's file."""
    file = Path(task.path)
    return (
        file.is_file()
        and file.stat().st_mtime_ns == task.written
        and file.read_bytes() == task.content
    )


def place_task(task: TaskFile) -> None:
    """Put the task's file there, with the folder of its run, as it is on the driver's machine."""
    file = Path(task.path)
    with keep_private():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(task.content)


def _variables_of_node() -> dict[str, str]:
    """Ours, but for what Ray says to an actor without cores: that it compute in one thread."""
    import ray

    variables = {**os.environ, NODE_ADDRESS: ray.util.get_node_ip_address()}
    with suppress(OSError):
        of_raylet = Path(f"/proc/{os.getppid()}/environ").read_bytes().split(b"\0")
        if not any(each.startswith(b"OMP_NUM_THREADS=") for each in of_raylet):
            variables.pop("OMP_NUM_THREADS", None)
    return variables


def _lines_of(process: ForkedProcess) -> Iterator[bytes]:
    """The lines that it prints, and an empty one whenever it has printed none for a moment."""
    descriptor, rest = process.output.fileno(), b""
    while True:
        if not select.select([descriptor], [], [], SECONDS_BETWEEN_LOOKS)[0]:
            yield b""
            continue
        chunk = os.read(descriptor, CHUNK_BYTES)
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines
        if not chunk:
            return
