"""Rule of a performance gate: planning writes it, verification recomputes it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, TypeAdapter

from eval_gates.speed.invalid_reasons import min_requests
from eval_gates.speed.screening import ScreeningRule
from eval_gates.speed.sequential_rule import WARM_UP, WARM_UP_SECONDS
from eval_gates.speed.slo import SloRule
from eval_gates.speed.throughput_ratio import ThroughputRatioRule, restart_allowance
from pipeline.core.record import Record
from recipes.speed import Accelerator, SloGate, SpeedGate
from recipes.workload import AnyWorkload, Arrivals, RandomWorkload, change_arrivals

if TYPE_CHECKING:
    from recipes.schema import ServingProfile

# For a ratio with interleaved server runs. More loads would cost time for little gain, because
# server runs differ about as much as loads do.
LOADS_PER_SERVER_RUN = 3

ClaimRule = ThroughputRatioRule | SloRule
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

    With one or two starts per side, the allowance for their effect takes half of the error rate.

    Args:
        alpha: error rate at which measuring stops.
        workload: the traffic, at its rate; None if not known yet.
        profile: settings of both sides' servers; None for endpoints.
    """
    gate, server_mode = claim.gate, profile.server_mode if profile is not None else None
    hits = workload.declared_hit_rate if workload is not None else None
    rule: dict[str, Any] = {"alpha": alpha, "hit_rate": hits}
    # Prompts of a file may share something.
    rule["must_count_hits"] = hits == 0 and not isinstance(workload, RandomWorkload)
    of_gpu = profile is not None and profile.accelerator == "cuda"
    if server_mode in ("interleaved", "auto") or (of_gpu and claim.kind == "slo"):
        # On a GPU limits are about starts in general, and a candidate alone has all of the memory.
        # Rounds of one server run are not independent, so each round has its own server runs.
        loads = LOADS_PER_SERVER_RUN if claim.kind == "ratio" else 1
        rule |= {"server_mode": "interleaved", "loads_per_server_run": loads}
    if isinstance(gate, SloGate):
        return SloRule(
            limits=dict(gate.limits.items()),
            compare=gate.compare,
            slo_attainment=gate.slo_attainment,
            rounds=gate.rounds,
            min_acceptance_length=gate.min_acceptance_length,
            **rule,
        )
    if profile is not None and server_mode in ("concurrent", "swapped"):
        starts = 2 if server_mode == "swapped" else 1  # of each side; their mean counts
        spread = profile.restart_stddev / math.sqrt(starts)
        allowed = restart_allowance(spread, profile.restart_count, alpha / 2)
        rule |= {"restart_allowance": allowed, "restart_allowance_alpha": alpha / 2}
    if server_mode == "swapped":
        block_seconds = workload.seconds if workload is not None else WARM_UP_SECONDS
        until = max(WARM_UP, math.ceil(WARM_UP_SECONDS / block_seconds))
        rule |= {"server_mode": "swapped", "loads_per_server_run": gate.blocks + until}
    return ThroughputRatioRule(min_ratio=gate.minimum_on(accelerator), blocks=gate.blocks, **rule)


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
