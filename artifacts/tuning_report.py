"""Record of `prepare tune`: screened candidates, the winner and its confirmation."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from eval_gates.gate_result import Verdict
from eval_gates.speed.report import SpeedGateResult
from pipeline.core.record import Record
from pipeline.stages.attempts import Trial
from recipes.schema import ServingProfile
from recipes.speed import SpeedPolicy


class ScreeningReport(Record):
    """Result of one candidate; its numbers only choose the winner."""

    name: str
    outcome: Literal["measured", "failed", "dropped"] = Field(
        description="failed: it did not start, died, or its loads are no measurement; dropped: it "
        "was not tried"
    )
    reason: str = Field("", description="of all without a measurement, why")
    arguments: dict[str, Any] = Field({}, description="the engine's, as it was served")
    output_tokens_per_s: float | None = Field(None, description="mean of its loads")
    ratio_to_defaults: float | None = Field(
        None, description="ratio to that of the engine's defaults; no evidence"
    )
    stage: str | None = Field(None, description="key of the stage that measured it")


class TuningReport(Record):
    """A whole `prepare tune`."""

    workload: str = Field(description="its name")
    speed: SpeedPolicy = Field(description="what is claimed")
    served: ServingProfile = Field(description="profile of the engine's defaults, as carried out")
    engine_defaults: dict[str, Any] = Field(
        description="arguments, next to the engine's own defaults"
    )
    screening: list[ScreeningReport] = Field(
        [], fail_fast=True, description="the engine's defaults first"
    )
    winner: str | None = Field(
        None, description="of the screening; None: nothing was faster than the defaults"
    )
    alpha: float = Field(description="error rate of the policy")
    trial: Trial | None = Field(None, description="None while no winner is confirmed")
    confirmation: SpeedGateResult | None = Field(
        None, description="winner against the defaults, on fresh servers"
    )
    stage: str | None = Field(None, description="key of the stage that measured it")
    verdict: Verdict | None = Field(None, description="pass: there is a tuned profile")
    reason: str = ""
    profile: str | None = Field(None, description="file of the tuned profile")

    @property
    def min_gain(self) -> float | None:
        """Lower bound of the gain in output tokens/s; None unless confirmed."""
        return self.confirmation.lower if self.confirmation and self.verdict == "pass" else None
