"""The stage that turns the evidence on a variant into a verdict."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from artifacts.trials import Trial
from eval_gates.drafted import Drafted
from eval_gates.load_test import LoadTestGate, read_load_test
from eval_gates.records import GateReport, Verdict
from eval_gates.speed.claimed_rule import Measuring
from eval_gates.speed.report import SpeedReport
from pipeline.core.digest import digest_json
from pipeline.core.record import Record
from pipeline.core.stage import NoRuntime, Stage
from pipeline.core.stage_record import StageRecord
from recipes.policy import Policy
from recipes.schema import AcceleratorName, Family


def _without_load_test(policy: Any) -> Any:
    is_former = isinstance(policy, dict) and "throughput" in policy
    return {k: v for k, v in policy.items() if k != "throughput"} if is_former else policy


# As evidence keeps it: one of before there were claims on speed has another key in their place.
KeptPolicy = Annotated[Policy, BeforeValidator(_without_load_test)]


class JudgeParameters(Record):
    """By what is judged; None of what evidence of before did not say."""

    policy: KeptPolicy
    recipe: str | None = Field(None, description="of the variant")
    tried: list[str] | None = Field(
        None, fail_fast=True, description="recipes whose number counts, sorted"
    )
    trial: Trial | None = Field(None, description="None where trials are not counted")
    family: Family
    planned_bets: dict[str, float] | None = Field(
        None, description="by suite; None of before there were such bets"
    )
    exact_bounds: bool = Field(
        False, description="of graded scores and fixed tests; before, of 10,000 random weightings"
    )
    accelerator: AcceleratorName | Literal[""] = Field("", description="'' of endpoints")
    speed_note: str | None = Field(None, description="what the profile says beside its speeds")
    measuring: Measuring | None = Field(
        None, description="of speed; None without a claim on it, and of evidence of before"
    )
    fallbacks: dict[str, dict[str, str]] = Field(
        {}, description="of the profile, that this machine's CPU put into effect"
    )

    load_test: LoadTestGate | None = Field(
        None, exclude=True, description="that a policy of before had in place of claims on speed"
    )

    @model_validator(mode="before")
    @classmethod
    def _read_former(cls, data: Any) -> Any:
        if not isinstance(data, dict) or not isinstance(data.get("policy"), dict):
            return data
        gate = data["policy"].get("throughput")
        if isinstance(gate, dict):
            gate = {**gate, "note": data.get("throughput_note")}
        return {k: v for k, v in data.items() if k != "throughput_note"} | {"load_test": gate}

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
    speed: list[SpeedReport] = Field([], fail_fast=True, description="claims on it")
    drafted: dict[str, Drafted] = Field(
        {}, description="of the variant, by suite; nothing is decided by it"
    )

    _read_former = model_validator(mode="before")(read_load_test)


def policy_digest(judge: StageRecord) -> str:
    """Of the policy as it is written there: a later prepare may read more keys into it."""
    return digest_json(judge.parameters.get("policy"))


JUDGE = Stage("judge", 9, JudgeParameters, NoRuntime, JudgeResult)
