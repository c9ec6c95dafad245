"""The declaration of the stage `judge`: what a verdict is."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from eval_gates.cost import CostResult
from eval_gates.decision_gate import DecisionResult
from eval_gates.depth import DepthResult
from eval_gates.engine_metrics import SpecDecodeStats
from eval_gates.gate_result import Verdict
from eval_gates.quality_result import QualityResult
from eval_gates.speed.report import SpeedGateResult
from pipeline.stages.attempts import History, JudgeParameters
from prepare.digest import digest_json
from prepare.record import Record
from prepare.stage import Stage, StageRecord

AnyGate = Annotated[
    QualityResult | DecisionResult | DepthResult | SpeedGateResult | CostResult,
    Field(discriminator="kind"),
]


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


JUDGE = Stage("judge", 25, JudgeParameters, JudgeRuntime, JudgeResult)


def policy_digest(judge: StageRecord) -> str:
    """Return the digest of the policy as recorded."""
    return digest_json(judge.parameters.get("policy"))
