"""The whole rule of a claim on speed, from what policy, profile and attempt say of it.

The plan lays it out, and whoever has the evidence lays it out again: nothing of a rule is free.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from pydantic import Field

from eval_gates.speed.invalid_reasons import fewest_requests
from eval_gates.speed.throughput_ratio import allowance_for
from pipeline.core.record import Record
from recipes.speed import Accelerator, SloGate, SpeedGate
from recipes.workload import AnyWorkload, Arrivals, RandomWorkload, change_arrivals

MANY_LIVES = 1_000  # a spread that is assumed is taken as known
# Of a ratio whose lives alternate: more would cost time and say little, since lives differ about
# as much as loads do.
LOADS_PER_LIFE = 3


class MeasurementSettings(Record):
    """How speed is measured, as far as the policy that claims something does not say it."""

    server_mode: Literal["concurrent", "interleaved"] | None = Field(
        None, description="of both sides' servers; None of endpoints, which run as they are"
    )
    restart_stddev: float = Field(
        0.0, ge=0, le=1, description="of ln(output tokens/s) between lives of one server"
    )
    restart_count: int = Field(MANY_LIVES, ge=2, description="starts that this was estimated from")
    workloads: dict[str, AnyWorkload] = Field(
        {}, description="that claims name and the policy has not: the profile's, and those carried"
    )

    def workload_of(self, claim: SpeedGate, own: Mapping[str, AnyWorkload]) -> AnyWorkload:
        """The claim's traffic, at the rate that it says.

        Args:
            claim: of a policy.
            own: workloads that the policy has itself.

        Raises:
            LookupError: nobody has such a workload.
            ValueError: it has no requests that could come so.
        """
        known = {**self.workloads, **own}
        return arrive_as_claimed(claim, known[claim.workload])


def arrive_as_claimed(claim: SpeedGate, workload: AnyWorkload) -> AnyWorkload:
    """The workload with its requests at the claim's rate; raises ValueError where it has none."""
    gate = claim.gate
    if isinstance(gate, SloGate) and gate.rate is not None:
        return change_arrivals(workload, Arrivals(rate=gate.rate))
    return workload


def lay_out_rule(
    claim: SpeedGate,
    workload: AnyWorkload,
    measuring: MeasurementSettings,
    accelerator: Accelerator | None,
    alpha: float,
) -> dict[str, Any]:
    """What decides the claim, as plain data.

    Args:
        claim: of a policy.
        workload: its traffic, at the rate that it says.
        measuring: what the policy does not say.
        accelerator: that both sides run on; None where nobody knows.
        alpha: error rate at which measuring stops.

    Raises:
        ValueError: the claim is none on that accelerator.
    """
    hits = workload.declared_hit_rate
    rule = claim.rule(accelerator, alpha, hits)
    if hits == 0 and not isinstance(workload, RandomWorkload):
        rule["must_count_hits"] = True  # prompts of a file may share something
    if measuring.server_mode is not None:
        rule |= _lives_of(claim, measuring, alpha)
    return rule


def compares(claim: SpeedGate) -> bool:
    """Whether the baseline is measured, too."""
    return not isinstance(claim.gate, SloGate) or claim.gate.compare == "baseline"


def _lives_of(claim: SpeedGate, measuring: MeasurementSettings, alpha: float) -> dict[str, Any]:
    """How the servers of both sides live while they are measured.

    Where one start a side is all, what that explains of a ratio takes half of the error rate.
    """
    if measuring.server_mode == "interleaved":
        # Rounds of one life are not independent, so each round has lives of its own.
        loads = LOADS_PER_LIFE if claim.kind == "ratio" else 1
        return {"server_mode": "interleaved", "loads_per_server_run": loads}
    if claim.kind == "slo":
        return {}
    share = alpha / 2
    return {
        "restart_allowance": allowance_for(
            measuring.restart_stddev, measuring.restart_count, share
        ),
        "restart_allowance_alpha": share,
    }


def highest_percentile(limits: Iterable[str]) -> int | None:
    """Of limits by their names; None where none is of a time."""
    return max((int(each.rpartition("_p")[2]) for each in limits if each != "errors"), default=None)


def expected_for(percentile: int) -> float:
    """Requests a round so that the percentile is of enough, as arrivals scatter.

    Four standard deviations of a Poisson count more than it needs.
    """
    needed = fewest_requests(percentile)
    return needed + 4 * math.sqrt(needed)


def lasts(workload: AnyWorkload) -> float:
    """Seconds that requests are sent for."""
    return workload.seconds + 2 * workload.warmup_seconds
