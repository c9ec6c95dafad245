"""The stage that measures a block of a speed gate: a fresh start and load of every arm.

An **arm** is the baseline or a variant.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from eval_gates.speed.rules import SpeedRule
from pipeline.core.record import Record
from pipeline.core.stage import Stage, StageReference, WorkerRuntime
from pipeline.serving.served_model import ServedModel
from pipeline.stages.attempts import Counted, Trial

BASELINE = "baseline"


class LoadParameters(Record):
    """What a gate's loads depend on, besides the models."""

    name: str = Field(description="of the workload")
    workload: dict[str, Any] = Field(description="with a digest in place of its file")
    rule: SpeedRule = Field(description="that decides")
    environment: str = Field("", description="identity of the load generator's")
    machine: str = Field("", description="speeds of two machines are not compared")
    other_weights: list[str] = Field(
        [], fail_fast=True, description="of weights that were there: measured again"
    )
    measurement: int = Field(1, ge=1, description="number of the measurement")

    @property
    def kind(self) -> str:
        return f"{self.rule.kind} {self.name}"


class LoadRuntime(WorkerRuntime):
    """The workload's files."""

    tokenizer: str = Field("", description="folder")
    claim: str = Field("", description="the gate: `ratio.chat`, `slo.0`")
    file: str | None = Field(None, description="of a workload that has one")
    counted: Counted | None = Field(None, description="None of a race, which decides nothing")


class BlockParameters(LoadParameters):
    """The measurement, and a block's number."""

    baseline: ServedModel
    trial: Trial = Field(description="the variants that are judged together")
    number: int = Field(0, ge=0, description="of the block")

    @property
    def arms(self) -> list[str]:
        """All arms that a block can have."""
        return [*([BASELINE] if self.rule.compares else []), *sorted(self.trial.variants)]


class BlockArm(Record):
    """An arm that takes part in a block."""

    served: ServedModel
    screen: StageReference = Field(description="the stage of its first answer")


class BlockRuntime(LoadRuntime):
    """The arms, and the workload's files."""

    arms: dict[str, BlockArm] = Field({}, description="by name")


class BlockResult(Record):
    """A block's summary; `loads.jsonl` has the loads in order."""

    arms: dict[str, str] = Field(
        description="by arm that was measured, in that order, the digest of its screen"
    )
    died: list[str] = Field([], description="arms whose server ended under load")
    seed: int = Field(description="that traffic and order of the measurement are drawn with")
    starts: int = Field(description="how often the block was begun; only the last is kept")
    loads_digest: str
    prompts_drawn_by: str = Field("", description="version of vLLM, whose readers drew the prompts")


BLOCK = Stage("block", 3, BlockParameters, BlockRuntime, BlockResult)
