"""Interface of executors, which run work items.

A work item is a file, and `prepare task run FILE` does it, on any machine: one stage, or a model's
server with its stages. It may run twice: finished stages are found in the store.
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
    """Receiver of a work item's events."""

    def stage_ended(self, stage: StageReport) -> None:
        """Receive the end of a stage, or of a server's start."""


class Job(Protocol):
    """One submitted piece of work."""

    def wait(self, listener: Listener) -> None:
        """Pass its events on until it ends, in any thread; raise its PrepareError."""

    def cancel(self) -> None:
        """End it and everything it started; called in another thread than `wait`."""


class Allocation(Protocol):
    """Reserved resources on one node, for successive work items."""

    def submit(self, task: Path, log: Path) -> Job:
        """Start the work item of the file; its output goes to `log`.

        An executor with a queue may start it only when `wait` is called.
        """

    def release(self) -> None:
        """Release the resources; repeated calls have no effect."""


class Executor(Protocol):
    """Runs work on machines that share the store."""

    @property
    def has_our_environments(self) -> bool:
        """Return whether nodes see this machine's environments; else each builds its own."""

    def find_room(self, needs: ResourceRequest) -> Allocation | None:
        """Reserve resources for a work item, until they are released.

        None if others use them: ask again later. An executor with a queue always succeeds, and
        waits in `Job.wait`, with a note.

        Raises:
            UsageError: no node has as much.
        """

    def obstacle(self) -> str:
        """Describe why the last reservation failed, to follow 'waiting for'."""

    def count_room(self, needs: ResourceRequest) -> int:
        """Return how many such work items could run concurrently on idle nodes."""

    def describe_node(
        self, asked: Sequence[ResourceRequest], store: Path, listener: Listener
    ) -> NodeInfo:
        """Return facts on a node that could run such a work item, reported by the node.

        Args:
            asked: at least one; the first with sufficient resources counts.
            store: folder that all nodes see.
            listener: receives notes on waiting.

        Raises:
            UsageError: no node has as much.
            StageError: no node answers.
        """


class ExecutorOptions(Record):
    """An executor's settings; each kind has a subclass."""

    kind: str = Field(description="which executor it is")

    @abstractmethod
    def open(self) -> Executor:
        """Return the executor.

        Raises:
            UsageError: it cannot be reached, or a package is missing.
        """
