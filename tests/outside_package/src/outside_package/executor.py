"""An executor that runs work on this machine, as the local one does."""

from __future__ import annotations

from pathlib import Path

from pipeline.core.resource_request import ResourceRequest
from pipeline.run.executors import Allocation, Executor, ExecutorOptions
from pipeline.run.executors.local import LocalOptions


class OutsideOptions(ExecutorOptions):
    """Its keys in the settings file."""

    partition: str = "all"
    receipts: Path | None = None

    def open(self) -> Executor:
        return OutsideExecutor(LocalOptions(kind="local").open(), self)


class OutsideExecutor:
    """Does what the local executor does, and writes a line for each allocation."""

    def __init__(self, inner: Executor, options: OutsideOptions) -> None:
        self._inner = inner
        self.partition, self._receipts = options.partition, options.receipts

    def find_room(self, needs: ResourceRequest) -> Allocation | None:
        found = self._inner.find_room(needs)
        if found is not None and self._receipts is not None:
            with self._receipts.open("a") as file:
                file.write(f"{self.partition}\n")
        return found

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)
