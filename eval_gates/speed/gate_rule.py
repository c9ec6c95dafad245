"""The complete rule of a performance gate, from policy, profile and attempt.

The plan builds it, and verification builds it again from the evidence: no part of it is free.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from pydantic import Field

from eval_gates.speed.invalid_reasons import min_requests
from eval_gates.speed.throughput_ratio import restart_allowance
from pipeline.core.record import Record
from recipes.speed import Accelerator, SloGate, SpeedGate
from recipes.workload import AnyWorkload, Arrivals, RandomWorkload, change_arrivals

ASSUMED_RUN_COUNT = 1_000  # an assumed spread counts as known
# For ratios with interleaved server runs: runs differ about as much as loads, so more loads per
# run would cost time and add little.
LOADS_PER_SERVER_RUN = 3


class MeasurementSettings(Record):
    """Measurement settings that the policy does not contain."""

    server_mode: Literal["concurrent", "interleaved"] | None = Field(
        None, description="of both sides' servers; None for endpoints, which prepare does not start"
    )
    restart_stddev: float = Field(
        0.0, ge=0, le=1, description="of ln(output tokens/s) between runs of one server"
    )
    restart_count: int = Field(ASSUMED_RUN_COUNT, ge=2, description="server runs of this estimate")
    workloads: dict[str, AnyWorkload] = Field(
        {},
        description="workloads of gates that are not the policy's: the profile's and built-in ones",
    )

    def find_workload(self, claim: SpeedGate, own: Mapping[str, AnyWorkload]) -> AnyWorkload:
        """Return the gate's traffic, at the gate's rate.

        Args:
            claim: a gate of the policy.
            own: the policy's own workloads.

        Raises:
            LookupError: there is no such workload.
            ValueError: its requests cannot arrive at that rate.
        """
        workloads = {**self.workloads, **own}
        return apply_gate_rate(claim, workloads[claim.workload])


def apply_gate_rate(claim: SpeedGate, workload: AnyWorkload) -> AnyWorkload:
    """Return the workload at the gate's rate; raises ValueError if it cannot have one."""
    gate = claim.gate
    if isinstance(gate, SloGate) and gate.rate is not None:
        return change_arrivals(workload, Arrivals(rate=gate.rate))
    return workload


def build_rule(
    claim: SpeedGate,
    workload: AnyWorkload,
    measuring: MeasurementSettings,
    accelerator: Accelerator | None,
    alpha: float,
) -> dict[str, Any]:
    """Return the gate's rule as plain data.

    Args:
        claim: a gate of the policy.
        workload: its traffic, at the gate's rate.
        measuring: settings that the policy does not contain.
        accelerator: of both sides; None if unknown.
        alpha: error rate at which measuring stops.

    Raises:
        ValueError: the gate does not apply to that accelerator.
    """
    hits = workload.declared_hit_rate
    rule = claim.rule(accelerator, alpha, hits)
    if hits == 0 and not isinstance(workload, RandomWorkload):
        rule["must_count_hits"] = True  # prompts of a file may share a prefix
    if measuring.server_mode is not None:
        rule |= _server_run_settings(claim, measuring, alpha)
    return rule


def needs_baseline(claim: SpeedGate) -> bool:
    """Return whether the baseline is measured, too."""
    return not isinstance(claim.gate, SloGate) or claim.gate.compare == "baseline"


def _server_run_settings(
    claim: SpeedGate, measuring: MeasurementSettings, alpha: float
) -> dict[str, Any]:
    """Return the settings of the server runs.

    With one start for each side, the allowance for restarts takes half of the error rate.
    """
    if measuring.server_mode == "interleaved":
        # Rounds of one server run are not independent, so each round has its own runs.
        loads = LOADS_PER_SERVER_RUN if claim.kind == "ratio" else 1
        return {"server_mode": "interleaved", "loads_per_server_run": loads}
    if claim.kind == "slo":
        return {}
    share = alpha / 2
    return {
        "restart_allowance": restart_allowance(
            measuring.restart_stddev, measuring.restart_count, share
        ),
        "restart_allowance_alpha": share,
    }


def max_percentile(limits: Iterable[str]) -> int | None:
    """Return the highest percentile among limits' names; None if no limit is a time."""
    percentiles = (int(name.rpartition("_p")[2]) for name in limits if name != "errors")
    return max(percentiles, default=None)


def expected_requests(percentile: int) -> float:
    """Return the expected requests per round that the percentile needs, for Poisson arrivals.

    It is four standard deviations above the minimum.
    """
    needed = min_requests(percentile)
    return needed + 4 * math.sqrt(needed)


def send_seconds(workload: AnyWorkload) -> float:
    """Return for how many seconds requests are sent."""
    return workload.seconds + 2 * workload.warmup_seconds
