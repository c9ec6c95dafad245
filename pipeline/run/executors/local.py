"""Runs work items in child processes on this machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field

from pipeline.core.credentials import credential_variables
from pipeline.core.hardware import NodeInfo, this_node
from pipeline.core.process_environment import stage_environment
from pipeline.core.resource_request import ResourceRequest
from pipeline.core.supervised_process import SupervisedProcess
from pipeline.run.executors.executor import ExecutorOptions, Listener
from pipeline.run.executors.node_allocator import NodeAllocation, NodeAllocator
from pipeline.run.executors.stage_process import check_end, needs_of, stage_in, start
from pipeline.run.executors.work_events import pass_on


class LocalExecutor:
    """The executor of a single machine; see executor.py.

    Raises:
        UsageError: the folder of the node's locks cannot be used.
    """

    has_our_environments = True

    def __init__(self) -> None:
        self._node = NodeAllocator()

    def find_room(self, needs: ResourceRequest) -> LocalAllocation | None:
        room = self._node.find_room(needs)
        return LocalAllocation(room) if room is not None else None

    def count_room(self, needs: ResourceRequest) -> int:
        return self._node.count_room(needs)

    def obstacle(self) -> str:
        return self._node.obstacle

    def describe_node(
        self, asked: Sequence[ResourceRequest], store: Path, listener: Listener
    ) -> NodeInfo:
        return this_node()


class LocalAllocation:
    """Room on this machine; see executor.py."""

    def __init__(self, room: NodeAllocation) -> None:
        self._room = room

    def submit(self, task: Path, log: Path) -> LocalJob:
        """Start `prepare task run SPEC` as a supervised child that sees its own GPUs only."""
        variables = stage_environment(
            {**os.environ, **credential_variables()}, stage_in(task), needs_of(task)
        )
        # Where we are killed the room is taken until the last of its processes has ended.
        held = self._room.descriptors
        own = {**variables, **self._room.variables()}
        process = start(task, log, own, held)
        return LocalJob(process, log)

    def release(self) -> None:
        self._room.release()


class LocalJob:
    """A work item in a child process; see executor.py."""

    def __init__(self, process: SupervisedProcess, log: Path) -> None:
        self._process = process
        self._log = log

    def wait(self, listener: Listener) -> None:
        failure = pass_on(self._process.output, listener)
        code = self._process.wait()
        self._process.stop()
        check_end(code, failure, self._log)

    def cancel(self) -> None:
        self._process.stop()


class LocalOptions(ExecutorOptions):
    """Work is done on this machine."""

    kind: Literal["local"] = Field("local", description="this machine")

    def open(self) -> LocalExecutor:
        """Return the executor; raise UsageError if the folder of the node's locks is unusable."""
        return LocalExecutor()
