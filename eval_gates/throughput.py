"""The throughput gate: the variant's output tokens a second over the baseline's."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from eval_gates.records import ThroughputReport, Tier, Verdict


def judge_throughput(
    baseline: Mapping[str, Any],
    candidate: Mapping[str, Any],
    *,
    minimum_ratio: float,
    maximum_failed_requests: int,
    tier: Tier = "critical",
    note: str | None,
) -> ThroughputReport:
    """Compare two load tests (benchmark stages' results) of one workload on one machine.

    Raises:
        ValueError: a rate is missing, zero or not a number; nothing is divided by it.
    """
    rates = [output_rate(side) for side in (baseline, candidate)]
    ratio = rates[1] / rates[0]
    failed = int(candidate["failed_requests"])
    verdict: Verdict = "pass"
    if failed > maximum_failed_requests:
        verdict = "fail"
        reason = f"{failed} benchmark requests failed, {maximum_failed_requests} are allowed"
    elif ratio < minimum_ratio:
        verdict = "fail"
        reason = f"{ratio:.3f} of the baseline's output tokens/s, {minimum_ratio} is asked for"
    else:
        reason = f"{ratio:.3f} of the baseline's output tokens/s, at least {minimum_ratio}"
    return ThroughputReport(
        tier=tier,
        output_tokens_per_s=rates[1],
        baseline_output_tokens_per_s=rates[0],
        ratio=ratio,
        minimum_ratio=minimum_ratio,
        ttft_ms_p50=candidate["ttft_ms_p50"],
        tpot_ms_p50=candidate["tpot_ms_p50"],
        itl_ms_p50=candidate["itl_ms_p50"],
        requests=candidate["requests"],
        failed_requests=failed,
        verdict=verdict,
        reason=reason,
        note=note,
    )


def output_rate(side: Mapping[str, Any]) -> float:
    """Output tokens a second of one load test; raises ValueError unless it is above zero."""
    rate = side.get("output_tokens_per_s")
    if not isinstance(rate, (int, float)) or not math.isfinite(rate) or rate <= 0:
        raise ValueError(f"a throughput is not a positive number: {rate}")
    return float(rate)
