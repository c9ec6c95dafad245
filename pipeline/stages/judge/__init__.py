"""The stage that computes a variant's verdict from the evidence."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from eval_gates.cost import CostReport, CostRule, cost_rule_of
from eval_gates.gate_report import GateReport, Verdict
from eval_gates.gate_rule import GateRule
from eval_gates.spec_decode_stats import SpecDecodeStats
from eval_gates.speed.gate_rule import SpeedGateRule
from eval_gates.speed.report import SpeedGateReport
from pipeline.core.digest import digest_json
from pipeline.core.record import Record
from pipeline.core.stage import Stage
from pipeline.core.stage_record import StageRecord
from pipeline.stages.attempts import History, Trial
from pipeline.stages.evaluate import EvaluateParameters
from recipes.policy import Policy
from recipes.schema import AcceleratorName, Family, ServingProfile


class JudgeParameters(Record):
    """All that a verdict depends on."""

    policy: Policy
    recipe: str | None = Field(None, description="of the variant")
    trial: Trial = Field(description="that the variant belongs to")
    family: Family
    gates: dict[str, GateRule] = Field(description="by suite")
    profile: ServingProfile | None = Field(
        None, description="that both sides are served by, as carried out; None of endpoints"
    )
    speed: dict[str, SpeedGateRule] = Field({}, description="by claim of the policy")
    cost: dict[str, CostRule] = Field({}, description="by suite that the policy's `cost` names")

    @property
    def accelerator(self) -> AcceleratorName | None:
        """The accelerator of both sides; None for endpoints, whose machine is unknown."""
        return self.profile.accelerator if self.profile is not None else None


class JudgeRuntime(Record):
    """What is recorded with the attempt if this stage counts it first."""

    run: str = Field("", description="id of the run that began the attempt")


class JudgeResult(Record):
    """The verdict on one variant alone."""

    verdict: Verdict
    reason: str
    p_value: float | None = None
    history: History = Field(description="what was judged against this baseline before")
    gates: list[GateReport] = Field(fail_fast=True)
    speed: list[SpeedGateReport] = Field([], fail_fast=True, description="claims on it")
    cost: list[CostReport] = Field([], fail_fast=True, description="on tokens per solved task")
    spec_decode: dict[str, SpecDecodeStats] = Field(
        {}, description="of the variant, by suite; nothing is decided by it"
    )


def cost_rules_of(
    policy: Policy,
    family: str,
    gates: Mapping[str, GateRule],
    asked: Mapping[str, EvaluateParameters],
) -> dict[str, CostRule]:
    """Return the rules of the gate `cost` by suite.

    Args:
        policy: of the verdict.
        family: of the variant's recipe.
        gates: rules of the suites' own gates, whose level they share.
        asked: how the variant was asked, by suite; others have no rule.
    """
    if policy.cost is None:
        return {}
    return {
        name: cost_rule_of(
            policy.cost, asked[name].suite, family, gates[name].alpha, asked[name].max_length
        )
        for name in policy.cost.suites
        if name in asked and name in gates
    }


def policy_digest(judge: StageRecord) -> str:
    """Return the digest of the policy as recorded."""
    return digest_json(judge.parameters.get("policy"))


JUDGE = Stage("judge", 2, JudgeParameters, JudgeRuntime, JudgeResult)
