"""What runs stages somewhere: the shape of an executor; each runs `prepare stage run SPEC`."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from pipeline.core.events import Progress


class Job(Protocol):
    """One submitted stage."""

    def wait(self, progress: Progress) -> None:
        """Pass the stage's events on until it ends; raises the stage's own PrepareError."""

    def cancel(self) -> None:
        """End the stage and everything it started."""


class Executor(Protocol):
    """Runs stages somewhere that shares the store with us."""

    def submit(self, spec: Path, log: Path) -> Job:
        """Start the stage that the spec file describes; its output goes to `log`."""
