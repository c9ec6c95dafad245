"""The stage that measures what one claim on speed rests on, or one entrant of a race."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from artifacts.served_model import ServedModel, ServerRuntime
from pipeline.core.record import Record
from pipeline.core.stage import Stage, WorkerRuntime
from recipes.speed import ClaimKind


class SpeedParameters(Record):
    """Which sides are measured, and until when."""

    claim: ClaimKind | Literal["race"] = Field(
        description="race: it is chosen what to claim something about"
    )
    name: str = Field(description="of the workload")
    workload: dict[str, Any] = Field(description="with what its file holds, and not where it is")
    rule: dict[str, Any] = Field(description="that decides")
    sides: dict[str, ServedModel] = Field(description="candidate, and baseline where it compares")
    environment: str = Field("", description="identity of the load generator's")
    machine: str = Field("", description="speeds of two machines are not compared")
    beside: list[str] = Field(
        [], fail_fast=True, description="of weights that were there: measured anew"
    )

    @property
    def alternates(self) -> bool:
        """Whether each side is served in turn, on lives of its own."""
        return len(self.sides) > 1 and self.rule.get("lives") == "alternate"


class SpeedRuntime(WorkerRuntime):
    """Where the sides answer, and the workload lies."""

    endpoints: dict[str, ServerRuntime] = Field({}, description="by side")
    tokenizer: str = Field("", description="folder")
    claim: str = Field("", description="the gate: `ratio.chat`, `slo.0`, `goodput`")
    file: str | None = Field(None, description="of a workload that has one")


class SpeedResult(Record):
    """What was measured; `loads.jsonl` has it all."""

    units: int = Field(description="blocks, pairs of lives or rounds")
    state: str
    seed: int = Field(description="that traffic was drawn with")
    lives: int = Field(
        1,
        description="of the servers, that were begun; of one that ended too soon what was whole "
        "is kept",
    )
    loads_digest: str
    load_generator: str = Field("", description="its version")


SPEED = Stage("speed", 1, SpeedParameters, SpeedRuntime, SpeedResult)
