"""The stage that turns the evidence on a variant into a verdict."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from artifacts.evidence.trials import Trial
from eval_gates.drafted import Drafted
from eval_gates.records import GateReport, ThroughputReport, Verdict
from eval_gates.speed.report import SpeedReport
from pipeline.core.digest import digest_json
from pipeline.core.record import Record
from pipeline.core.stage import NoRuntime, Stage
from pipeline.core.stage_record import StageRecord
from recipes.policy import Policy
from recipes.schema import AcceleratorName, Family


class JudgeParameters(Record):
    """By what is judged; None of what evidence of before did not say."""

    policy: Policy
    recipe: str | None = Field(None, description="of the variant")
    tried: list[str] | None = Field(
        None, fail_fast=True, description="recipes whose number counts, sorted"
    )
    trial: Trial | None = Field(None, description="None where trials are not counted")
    family: Family
    planned_bets: dict[str, float] | None = Field(
        None, description="by suite; None of before there were such bets"
    )
    accelerator: AcceleratorName | Literal[""] = Field("", description="'' of endpoints")
    throughput_note: str | None = None
    fallbacks: dict[str, dict[str, str]] = Field(
        {}, description="of the profile, that this machine's CPU put into effect"
    )

    @property
    def number(self) -> int | None:
        """Which trial of its baseline it is; None where trials are not counted."""
        return self.trial.number if self.trial is not None else None


class JudgeResult(Record):
    """The verdict on a variant alone."""

    verdict: Verdict
    reason: str
    p_value: float | None = None
    trial: int | None = None
    gates: list[GateReport] = Field(fail_fast=True)
    throughput: ThroughputReport | None
    speed: list[SpeedReport] = Field([], fail_fast=True, description="claims on it")
    drafted: dict[str, Drafted] = Field(
        {}, description="of the variant, by suite and 'throughput'; nothing is decided by it"
    )


def policy_digest(judge: StageRecord) -> str:
    """Of the policy as it is written there: a later prepare may read more keys into it."""
    return digest_json(judge.parameters.get("policy"))


JUDGE = Stage("judge", 8, JudgeParameters, NoRuntime, JudgeResult)
