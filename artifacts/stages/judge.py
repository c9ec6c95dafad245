"""The stage that turns the evidence on a variant into a verdict."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from artifacts.attempts import Attempt
from eval_gates.gate_report import GateReport, Verdict
from eval_gates.spec_decode_stats import SpecDecodeStats
from eval_gates.speed.gate_rule import MeasurementSettings
from eval_gates.speed.report import SpeedGateReport
from pipeline.core.digest import digest_json
from pipeline.core.record import Record
from pipeline.core.stage import Stage
from pipeline.core.stage_record import StageRecord
from recipes.policy import Policy
from recipes.schema import AcceleratorName, Family


class JudgeParameters(Record):
    """What a verdict is reached by."""

    policy: Policy
    recipe: str | None = Field(None, description="of the variant")
    attempt: Attempt = Field(description="that the variant belongs to, without its run")
    family: Family
    planned_bets: dict[str, float] = Field(description="by suite with a sequential test")
    accelerator: AcceleratorName | Literal[""] = Field("", description="'' of endpoints")
    speed_note: str | None = Field(None, description="what the profile says beside its speeds")
    measuring: MeasurementSettings | None = Field(
        None, description="how speed is measured; None without a performance gate"
    )
    cpu_overrides: dict[str, dict[str, str]] = Field(
        {}, description="of the profile, that this machine's CPU put into effect"
    )


class JudgeRuntime(Record):
    """What is written beside the attempt where this stage is the first to count it."""

    run: str = Field("", description="id of the run that began the attempt")


class JudgeResult(Record):
    """The verdict on a variant alone."""

    verdict: Verdict
    reason: str
    p_value: float | None = None
    attempt: int = Field(description="number of the attempt against this baseline")
    gates: list[GateReport] = Field(fail_fast=True)
    speed: list[SpeedGateReport] = Field([], fail_fast=True, description="claims on it")
    spec_decode: dict[str, SpecDecodeStats] = Field(
        {}, description="of the variant, by suite; nothing is decided by it"
    )


def policy_digest(judge: StageRecord) -> str:
    """Return the digest of the policy as the record has it."""
    return digest_json(judge.parameters.get("policy"))


JUDGE = Stage("judge", 1, JudgeParameters, JudgeRuntime, JudgeResult)
