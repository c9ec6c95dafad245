"""An executor that runs work on this machine, as the local one does."""

from __future__ import annotations

from pipeline.run.executors import Executor, ExecutorOptions
from pipeline.run.executors.local import LocalOptions


class OutsideOptions(ExecutorOptions):
    """Its keys in the settings file."""

    partition: str = "all"

    def open(self) -> Executor:
        return OutsideExecutor(LocalOptions(kind="local").open(), self.partition)


class OutsideExecutor:
    """Does what the local executor does."""

    def __init__(self, inner: Executor, partition: str) -> None:
        self._inner = inner
        self.partition = partition

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)
