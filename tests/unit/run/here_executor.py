"""All that a second executor is: this module, and its line in the list of executors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipeline.core.events import Progress
from pipeline.core.hardware import NodeInfo, this_node
from pipeline.core.resource_request import ResourceRequest
from pipeline.core.stage_record import StageSpec
from pipeline.core.store import Store
from pipeline.run.executors import ExecutorOptions
from pipeline.stages.context import advance


class HereExecutor:
    """Runs stages in this process."""

    has_our_environments = True

    def find_room(self, needs: ResourceRequest) -> HereExecutor:
        return self

    def obstacle(self) -> str:
        """Other work."""
        return "other work"

    def count_room(self, needs: ResourceRequest) -> int:
        return 1

    def describe_node(
        self, asked: Sequence[ResourceRequest], store: Path, listener: Progress
    ) -> NodeInfo:
        return this_node()

    def release(self) -> None:
        pass

    def submit(self, spec: Path, log: Path) -> HereJob:
        log.write_text("here")
        return HereJob(spec)


class HereJob:
    def __init__(self, spec: Path) -> None:
        self._spec = spec

    def wait(self, listener: Progress) -> None:
        spec = StageSpec.model_validate_json(self._spec.read_bytes())
        advance(spec, Store(Path(spec.store)), listener)

    def cancel(self) -> None:
        raise AssertionError("there is nothing to end")


class HereOptions(ExecutorOptions):
    def open(self) -> HereExecutor:
        return HereExecutor()
