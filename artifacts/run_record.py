"""The record of a run: its stages, its variants and the whole; `--json` prints it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from artifacts.recorded_command import RecordedCommand, RunKind, read_command
from artifacts.tuning_report import TuningReport
from eval_gates.attribution import AttributionReport
from eval_gates.gate_result import Verdict
from eval_gates.quality_result import QualityResult
from eval_gates.spec_decode_stats import SpecDecodeStats
from eval_gates.speed.load_run import Side
from eval_gates.speed.report import SpeedGateResult
from pipeline.checkpoint.source_info import CheckpointReport
from pipeline.core.record import Record
from pipeline.stages.attempts import History
from pipeline.stages.judge import AnyGate, JudgeResult

SCHEMA_VERSION: Literal[1] = 1

StageStatus = Literal["ran", "reused", "failed"]


class VariantReport(Record):
    """Result of one recipe."""

    recipe: str
    weights_bytes: int | None = Field(description="None when it was never made")
    verdict: Verdict | Literal["error", "skipped"] = Field(
        description="skipped: a recipe of a fallback chain that was not needed, since one before "
        "it passed"
    )
    reason: str = Field(description="why, in words; for an error: message, where and hint")
    p_value: float | None = Field(
        None, description="of 'worse than allowed', the largest of its gates'; None if not judged"
    )
    history: History | None = Field(
        None, description="what was judged against this baseline before; None if not judged"
    )
    promoted: bool
    registry_version: str | None = Field(None, description="when it was registered")
    gates: list[AnyGate] = Field(
        fail_fast=True, description="in the policy's order: quality, speed, cost"
    )
    spec_decode: dict[str, SpecDecodeStats] = Field(
        {},
        description="what speculative decoding drafted and had accepted, by suite; "
        "empty without it",
    )
    ablation: list[AttributionReport] = Field(
        [],
        fail_fast=True,
        description="which of weights and KV cache costs what, where it was asked for; no verdict "
        "depends on it",
    )

    @property
    def quality(self) -> list[QualityResult]:
        """The gates on suites."""
        return [gate for gate in self.gates if isinstance(gate, QualityResult)]

    @property
    def speed(self) -> list[SpeedGateResult]:
        """The performance gates."""
        return [gate for gate in self.gates if isinstance(gate, SpeedGateResult)]

    def rate(self, side: Side) -> float | None:
        """Return a side's median output tokens/s; None if no ratio was measured."""
        return next((each.typical(side) for each in self.speed if each.is_ratio), None)


def report_judged(recipe: str, weights: int | None, judged: JudgeResult) -> VariantReport:
    """Return the report of a judged variant before promotion."""
    return VariantReport(recipe=recipe, weights_bytes=weights, promoted=False, **dict(judged))


def report_unjudged(
    recipe: str, verdict: Literal["fail", "error", "skipped"], reason: str, weights: int | None
) -> VariantReport:
    """Return the report of a variant without gates."""
    return VariantReport(
        recipe=recipe,
        weights_bytes=weights,
        verdict=verdict,
        reason=reason,
        promoted=False,
        p_value=None,
        registry_version=None,
        gates=[],
    )


class StageReport(Record):
    """Result of one stage of a run."""

    name: str = Field(description="for people: the stage, of a suite with suite and round")
    stage: str = Field(description="as the store names it; 'serve' is none of its stages")
    variant: str
    status: StageStatus
    seconds: float = Field(description="wall time; of a reused stage, to find it")
    key: str | None = Field(description="in the store; None for 'serve', which has no output")


class RunReport(Record):
    """A whole run, in run.json and for `--json`."""

    schema_version: Literal[1] = SCHEMA_VERSION
    run: str = Field(description="id of the run")
    status: Literal["running", "finished", "failed", "interrupted", "killed"]
    exit_code: int | None
    started: str
    seconds: float
    command: dict[str, Any] = Field(description="options as resolved")
    kind: RunKind = Field(description="the command that made it")
    checkpoint: CheckpointReport | None
    registered_name: str | None = Field(None, description="name in the model registry")
    variants: list[VariantReport]
    stages: list[StageReport]
    running: list[str] = Field(
        [], description="variant and name of the stages that run now, or follow on one server"
    )
    notes: list[str] = Field(description="the notes that were reported")
    tuning: TuningReport | None = Field(None, description="of `prepare tune`")
    error: dict[str, str] | None = Field(None, description="of a run that failed as a whole")

    @field_validator("command")
    @classmethod
    def _options_are_of_their_kinds(cls, command: dict[str, Any]) -> dict[str, Any]:
        read_command(command)
        return command

    @property
    def options(self) -> RecordedCommand:
        """The validated command; keys of other versions are ignored."""
        return read_command(self.command)
