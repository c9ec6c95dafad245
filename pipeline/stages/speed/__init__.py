"""The stage that measures one speed gate, or one candidate of a screening."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from eval_gates.speed.rules import SpeedRule
from pipeline.core.record import Record
from pipeline.core.stage import Stage, WorkerRuntime
from pipeline.serving.served_model import ServedModel, ServerRuntime
from pipeline.stages.attempts import Counted
from pipeline.stages.block import BlockParameters

# Prefix of these stages' roles, before the gate's name.
ROLE = "speed."


class SpeedParameters(Record):
    """The sides to measure, and the stopping rule."""

    name: str = Field(description="of the workload")
    workload: dict[str, Any] = Field(description="with a digest in place of its file")
    rule: SpeedRule = Field(description="that decides")
    sides: dict[str, ServedModel] = Field(description="candidate, and baseline where it compares")
    environment: str = Field("", description="identity of the load generator's")
    machine: str = Field("", description="speeds of two machines are not compared")
    other_weights: list[str] = Field(
        [], fail_fast=True, description="of weights that were there: measured again"
    )
    measurement: int = Field(1, ge=1, description="number of the measurement")

    @property
    def kind(self) -> str:
        """What its duration depends on most."""
        return f"{self.rule.kind} {self.name}"

    @property
    def is_fresh(self) -> bool:
        """Whether each load has a new server start, and the stages `block` measure."""
        return self.rule.starts == "fresh"


class SpeedRuntime(WorkerRuntime):
    """Endpoints of the sides, and the workload's files."""

    endpoints: dict[str, ServerRuntime] = Field({}, description="by side")
    tokenizer: str = Field("", description="folder")
    claim: str = Field("", description="the gate: `ratio.chat`, `slo.0`")
    file: str | None = Field(None, description="of a workload that has one")
    counted: Counted | None = Field(None, description="None of a race, which decides nothing")
    measurement: BlockParameters | None = Field(None, description="of fresh starts: its blocks")
    arm: str = Field("", description="the candidate's name in them")


class SpeedResult(Record):
    """Summary of the measurement; `loads.jsonl` has all loads."""

    units: int = Field(description="blocks")
    state: str
    seed: int = Field(description="that traffic was drawn with")
    server_runs: int = Field(
        description="of the servers, that were begun; of one that ended too soon what was whole "
        "is kept. With fresh starts, number of blocks that were begun",
    )
    arms: list[str] = Field(description="among which the order is drawn")
    arm: str = Field(description="the candidate's name among them")
    loads_digest: str
    prompts_drawn_by: str = Field("", description="version of vLLM, whose readers drew the prompts")


SPEED = Stage("speed", 4, SpeedParameters, SpeedRuntime, SpeedResult)
