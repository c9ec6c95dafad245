"""Rule of a performance gate: planning writes it, verification recomputes it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, TypeAdapter

from eval_gates.speed.invalid_reasons import min_requests
from eval_gates.speed.rules import LimitRule, RatioRule
from eval_gates.speed.screening import ScreeningRule
from pipeline.core.record import Record
from recipes.speed import Accelerator, SloGate, SpeedGate
from recipes.workload import AnyWorkload, Arrivals, RandomWorkload, change_arrivals

if TYPE_CHECKING:
    from recipes.schema import ServingProfile

ClaimRule = RatioRule | LimitRule
AnyRule = Annotated[ClaimRule | ScreeningRule, Field(discriminator="kind")]
WORKLOAD = "with what its file holds, and not where it is"


class SpeedGateRule(Record):
    """Measurement and decision of a performance gate."""

    name: str = Field(description="of the workload")
    workload: dict[str, Any] = Field(description=WORKLOAD)
    rule: ClaimRule = Field(discriminator="kind")


def parse_rule(data: Mapping[str, Any]) -> ClaimRule | ScreeningRule:
    """Parse a worker's rule from plain data; raises ValidationError."""
    found: ClaimRule | ScreeningRule = TypeAdapter(AnyRule).validate_python(dict(data))
    return found


def apply_gate_rate(claim: SpeedGate, workload: AnyWorkload) -> AnyWorkload:
    """Return the workload at the gate's rate."""
    gate = claim.gate
    if isinstance(gate, SloGate) and gate.rate is not None:
        return change_arrivals(workload, Arrivals(rate=gate.rate))
    return workload


def build_rule(
    claim: SpeedGate,
    alpha: float,
    accelerator: Accelerator | None,
    workload: AnyWorkload | None = None,
    profile: ServingProfile | None = None,
) -> ClaimRule:
    """Return the rule of a gate; ValueError if it does not apply to that accelerator.

    Args:
        alpha: error rate of a pass and of a fail.
        workload: the traffic, at its rate; None if not known yet.
        profile: settings of both sides' servers; None for endpoints, which are up already.
    """
    gate = claim.gate
    hits = workload.declared_hit_rate if workload is not None else None
    rule: dict[str, Any] = {
        "alpha": alpha,
        "hit_rate": hits,
        # Prompts of a file may share something.
        "must_count_hits": hits == 0 and not isinstance(workload, RandomWorkload),
        "starts": profile.starts if profile is not None else "once",
    }
    if isinstance(gate, SloGate):
        return LimitRule(limits=dict(gate.limits.items()), blocks=gate.starts, **rule)
    return RatioRule(min_ratio=gate.minimum_on(accelerator), blocks=gate.blocks, **rule)


def max_percentile(limits: Iterable[str]) -> int | None:
    """Return the highest percentile that the limits name, if any."""
    percentiles = (int(name.rpartition("_p")[2]) for name in limits if name != "errors")
    return max(percentiles, default=None)


def expected_requests(percentile: int) -> float:
    """Return the Poisson mean that is 4 standard deviations above the percentile's minimum."""
    needed = min_requests(percentile)
    return needed + 4 * math.sqrt(needed)


def send_seconds(workload: AnyWorkload) -> float:
    """Return the seconds during which requests are sent."""
    return workload.seconds + 2 * workload.warmup_seconds
