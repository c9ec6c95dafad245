"""What runs pieces of work somewhere: the shape of an executor.

A piece of work is a file, and `prepare task run FILE` does it, on any machine: one stage, or
a model's server with the stages that ask it. It may be done twice: what is done already is found in
the store.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from pydantic import Field

from artifacts.run_record import StageReport
from pipeline.core.events import Progress
from pipeline.core.hardware import NodeInfo
from pipeline.core.record import Record
from pipeline.core.resource_request import ResourceRequest


class Listener(Progress, Protocol):
    """Receives all that a piece of work tells of itself while it is done."""

    def stage_ended(self, stage: StageReport) -> None:
        """One of its stages has ended, or a server's start."""


class Job(Protocol):
    """One submitted piece of work."""

    def wait(self, listener: Listener) -> None:
        """Pass its events on until it ends, in any thread; raises its own PrepareError."""

    def cancel(self) -> None:
        """End it and everything it started; from another thread than the one that waits."""


class Allocation(Protocol):
    """Room on one node, for one piece of work after another."""

    def submit(self, task: Path, log: Path) -> Job:
        """Start the work that the file describes; its output goes to `log`.

        Where there is a queue it may begin no sooner than its job is waited for.
        """

    def release(self) -> None:
        """Give the room back; may be called again."""


class Executor(Protocol):
    """Runs work somewhere that shares the store with us."""

    @property
    def has_our_environments(self) -> bool:
        """Whether what this machine has built is there too; else a node builds its own."""

    def find_room(self, needs: ResourceRequest) -> Allocation | None:
        """Room for a piece of work, until it is released.

        None where others have it: ask again in a while. An executor with a separate queue always
        has room, and waits in `Job.wait`, which tells so in a note.

        Raises:
            UsageError: nowhere it runs things is there as much.
        """

    def obstacle(self) -> str:
        """What was in the way when there was no room, to be put after 'waiting for'."""

    def count_room(self, needs: ResourceRequest) -> int:
        """How many such pieces of work could run side by side if nothing else ran."""

    def describe_node(
        self, asked: Sequence[ResourceRequest], store: Path, listener: Listener
    ) -> NodeInfo:
        """What a node is on which such a piece of work would be done, as it says itself.

        Args:
            asked: at least one; of these the first that there is room for counts.
            store: folder that all nodes see.
            listener: is told of waiting for it.

        Raises:
            UsageError: nowhere it runs things is there as much.
            StageError: no node answers.
        """


class ExecutorOptions(Record):
    """What the settings say of an executor; those of one kind are a class over this."""

    kind: str = Field(description="which executor it is")

    @abstractmethod
    def open(self) -> Executor:
        """The executor.

        Raises:
            UsageError: it cannot be reached, or a package is missing.
        """
