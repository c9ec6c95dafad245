"""All that a second executor is: this module, and its line in the list of executors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipeline.core.events import Progress
from pipeline.core.hardware import NodeFacts, this_node
from pipeline.core.needs import Needs
from pipeline.core.stage_record import StageSpec
from pipeline.core.store import Store
from pipeline.run.executors import Options
from pipeline.stages.context import advance


class HereExecutor:
    """Runs stages in this process."""

    has_our_environments = True

    def find_room(self, needs: Needs) -> HereExecutor:
        return self

    def obstacle(self) -> str:
        """Other work."""
        return "other work"

    def count_room(self, needs: Needs) -> int:
        return 1

    def describe_node(self, asked: Sequence[Needs], store: Path, listener: Progress) -> NodeFacts:
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


class HereOptions(Options):
    def open(self) -> HereExecutor:
        return HereExecutor()
