"""Runs a stage in a child process on this machine."""

from __future__ import annotations

import json
import os
from pathlib import Path

from pipeline.core import errors
from pipeline.core.credentials import hand_on
from pipeline.core.foreign.file import read_regular
from pipeline.core.foreign.record import MAX_BYTES
from pipeline.core.needs import Needs
from pipeline.core.private_files import open_log
from pipeline.core.process_environment import stage_environment
from pipeline.core.processes import GuardedProcess
from pipeline.run.executors.events import pass_on
from pipeline.run.executors.executor import Listener
from pipeline.run.executors.forks import ForkedProcess, Forks
from pipeline.run.executors.node_room import Node, NodeRoom


class LocalExecutor:
    """The executor of a single machine; see executor.py.

    Raises:
        UsageError: the folder of the node's locks cannot be used.
    """

    def __init__(self) -> None:
        self._node = Node()
        self._forks = Forks()

    def find_room(self, needs: Needs) -> LocalPlace | None:
        """Room on this machine, which is shared out among the runs of all its users."""
        room = self._node.find_room(needs)
        return LocalPlace(room, self._forks) if room is not None else None

    def count_room(self, needs: Needs) -> int:
        """How many such pieces of work this machine has room for."""
        return self._node.count_room(needs)

    def obstacle(self) -> str:
        """What was in the way when there was no room."""
        return self._node.obstacle


class InRoom:
    """The executor within a piece of work, which has its room already."""

    def __init__(self) -> None:
        self._forks = Forks()

    def find_room(self, needs: Needs) -> LocalPlace:
        """The room that there is."""
        return LocalPlace(NodeRoom(), self._forks)

    def count_room(self, needs: Needs) -> int:
        """One after another."""
        return 1

    def obstacle(self) -> str:
        """Nothing is."""
        return ""


class LocalPlace:
    """Room on this machine; see executor.py."""

    def __init__(self, room: NodeRoom, forks: Forks) -> None:
        self._room = room
        self._forks = forks

    def submit(self, task: Path, log: Path) -> LocalJob:
        """Start `prepare stage run SPEC` as a guarded child, which sees its own GPUs only."""
        variables = stage_environment({**os.environ, **hand_on()}, stage_in(task))
        with open_log(log) as log_file:
            process = self._forks.start(
                ["stage", "run", str(task)],
                environment={**variables, **self._room.variables()},
                errors=log_file,
                # Where we are killed the room is taken until the last of its processes has ended.
                held_descriptors=self._room.descriptors,
            )
        return LocalJob(process, log)

    def release(self) -> None:
        """Give the room back."""
        self._room.release()


class LocalJob:
    """A stage running in a child process; see executor.py."""

    def __init__(self, process: ForkedProcess | GuardedProcess, log: Path) -> None:
        self._process = process
        self._log = log

    def wait(self, listener: Listener) -> None:
        """Pass events on until the work ends.

        Raises:
            PrepareError: what it reported, or a StageError when it died without a word.
        """
        failure = pass_on(self._process.output, listener)
        code = self._process.wait()
        self._process.stop()
        if failure is not None:
            raise failure
        if code != 0:
            raise errors.StageError(
                f"a stage ended with exit code {code} and no message"
                + (" (killed; often the machine is out of memory)" if code == 137 else ""),
                where=str(self._log),
                cure="read the log; running the same command again continues where it stopped",
            )

    def cancel(self) -> None:
        """End the stage's whole process group."""
        self._process.stop()


def stage_in(spec: Path) -> str:
    """Which stage the file asks for; "" where it cannot be read, which the stage itself reports."""
    try:
        return str(json.loads(read_regular(spec, MAX_BYTES))["stage"])
    except (OSError, ValueError, LookupError, TypeError):
        return ""
