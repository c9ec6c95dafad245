"""What runs stages somewhere: the shape of an executor; each runs `prepare stage run SPEC`."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from pipeline.core.events import Progress
from pipeline.core.needs import Needs


class Job(Protocol):
    """One submitted stage."""

    def wait(self, progress: Progress) -> None:
        """Pass the stage's events on until it ends; raises the stage's own PrepareError."""

    def cancel(self) -> None:
        """End the stage and everything it started."""


class Place(Protocol):
    """Room on one node, for one piece of work after another."""

    def submit(self, spec: Path, log: Path) -> Job:
        """Start the stage that the spec file describes; its output goes to `log`."""


class Executor(Protocol):
    """Runs stages somewhere that shares the store with us."""

    def reserve(self, needs: Needs, progress: Progress) -> AbstractContextManager[Place]:
        """Room for a piece of work, as long as the context lasts.

        Where others have the room it is waited for here, or, by an executor with a queue of its
        own, in `Job.wait`; either way `progress` is told what is waited for.
        """
