"""The stage that computes a variant's verdict."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from eval_gates.cost import CostResult
from eval_gates.gate_result import Verdict
from eval_gates.gate_rule import GateRule, gate_rule_of
from eval_gates.quality_result import QualityResult
from eval_gates.spec_decode_stats import SpecDecodeStats
from eval_gates.speed.report import SpeedGateResult
from pipeline.core.digest import digest_json
from pipeline.core.record import Record
from pipeline.core.stage import Stage, StageRecord
from pipeline.stages.attempts import History, Trial
from recipes.policy import Policy
from recipes.schema import AcceleratorName, Family, ServingProfile


class JudgeParameters(Record):
    """All that a verdict and its gates' rules depend on."""

    policy: Policy
    recipe: str | None = Field(None, description="of the variant")
    trial: Trial = Field(description="that the variant belongs to")
    family: Family
    profile: ServingProfile | None = Field(
        None, description="that both sides are served by, as carried out; None of endpoints"
    )

    @property
    def accelerator(self) -> AcceleratorName | None:
        """Both sides' accelerator; None for endpoints."""
        return self.profile.accelerator if self.profile is not None else None

    @property
    def gates(self) -> dict[str, GateRule]:
        level = self.trial.level
        return {
            name: gate_rule_of(suite, self.family, level)
            for name, suite in self.policy.suites.items()
        }


AnyGate = Annotated[QualityResult | SpeedGateResult | CostResult, Field(discriminator="kind")]


class JudgeRuntime(Record):
    """Recorded with an attempt that this stage counts."""

    run: str = Field("", description="id of the run that began the attempt")


class JudgeResult(Record):
    """The verdict on one variant alone."""

    verdict: Verdict
    reason: str
    p_value: float | None = None
    history: History = Field(description="what was judged against this baseline before")
    gates: list[AnyGate] = Field(
        fail_fast=True, description="in the policy's order: quality, speed, cost"
    )
    spec_decode: dict[str, SpecDecodeStats] = Field(
        {}, description="of the variant, by suite; nothing is decided by it"
    )


def policy_digest(judge: StageRecord) -> str:
    """Return the digest of the policy as recorded."""
    return digest_json(judge.parameters.get("policy"))


JUDGE = Stage("judge", 6, JudgeParameters, JudgeRuntime, JudgeResult)
