"""The throughput gate: what it divides, what it refuses, and exactly where it draws the line."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval_gates.records import ThroughputReport, Tier
from eval_gates.throughput import judge_throughput


def side(rate: Any, failed: int = 0) -> dict[str, Any]:
    return {
        "output_tokens_per_s": rate,
        "failed_requests": failed,
        "requests": 16,
        "ttft_ms_p50": 10.0,
        "tpot_ms_p50": 2.0,
        "itl_ms_p50": 3.0,
    }


def judged(
    baseline: dict[str, Any],
    candidate: dict[str, Any],
    minimum: float = 0.9,
    allowed: int = 0,
    note: str | None = None,
) -> ThroughputReport:
    return judge_throughput(
        baseline,
        candidate,
        minimum_ratio=minimum,
        maximum_failed_requests=allowed,
        note=note,
    )


@pytest.mark.parametrize("rate", [0, 0.0, math.nan, math.inf, -1.0, None, "205"])
def test_a_rate_that_is_none_is_refused(rate: Any) -> None:
    with pytest.raises(ValueError, match=f"not a positive number: {rate}"):
        judged(side(rate), side(100.0))
    with pytest.raises(ValueError, match=f"not a positive number: {rate}"):
        judged(side(100.0), side(rate))


def test_a_rate_that_is_missing_is_refused() -> None:
    baseline = side(100.0)
    del baseline["output_tokens_per_s"]
    with pytest.raises(ValueError, match="not a positive number: None"):
        judged(baseline, side(100.0))


def test_exactly_at_the_minimum_passes() -> None:
    report = judged(side(200.0), side(150.0), minimum=0.75)
    assert (report.verdict, report.ratio) == ("pass", 0.75)


def test_just_below_fails_though_it_rounds_to_the_minimum() -> None:
    report = judged(side(200.0), side(math.nextafter(150.0, 0)), minimum=0.75)
    assert report.verdict == "fail"
    assert "0.750 of the baseline's" in report.reason
    assert "0.75 is asked for" in report.reason


def test_failed_requests_fail_however_fast_the_rest_was() -> None:
    report = judged(side(100.0), side(500.0, 3))
    assert report.verdict == "fail"
    assert report.failed_requests == 3
    assert report.reason == "3 benchmark requests failed, 0 are allowed"


def test_as_many_failed_requests_as_allowed_pass() -> None:
    assert judged(side(100.0), side(100.0, 2), allowed=2).verdict == "pass"
    assert judged(side(100.0), side(100.0, 3), allowed=2).verdict == "fail"


def test_the_report_is_of_the_variant() -> None:
    candidate = side(300.0) | {"ttft_ms_p50": 7.0, "requests": 32}
    report = judged(side(200.0), candidate, note="measured on a CPU")
    assert (report.output_tokens_per_s, report.baseline_output_tokens_per_s) == (300.0, 200.0)
    assert (report.ratio, report.ttft_ms_p50, report.requests) == (1.5, 7.0, 32)
    assert report.note == "measured on a CPU"


@pytest.mark.parametrize("tier", ["critical", "supporting", "advisory"])
def test_the_tier_is_the_policys_and_changes_no_verdict(tier: Tier) -> None:
    report = judge_throughput(
        side(100.0),
        side(50.0),
        minimum_ratio=0.9,
        maximum_failed_requests=0,
        tier=tier,
        note=None,
    )
    assert (report.tier, report.verdict) == (tier, "fail")


def test_it_is_critical_where_nothing_else_is_said() -> None:
    assert judged(side(100.0), side(100.0)).tier == "critical"


RATES = st.floats(1e-3, 1e6)


@given(before=RATES, after=RATES, minimum=st.floats(0.01, 10), failed=st.integers(0, 3))
def test_laws(before: float, after: float, minimum: float, failed: int) -> None:
    report = judged(side(before), side(after, failed), minimum)
    assert (report.verdict == "pass") == (after / before >= minimum and failed == 0)
    assert judged(side(before), side(after, failed), minimum) == report
