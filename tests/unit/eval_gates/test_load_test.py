"""The load test of evidence from before: what it refuses, and where it drew the line."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from artifacts.evidence.verdict import drafted_by, load_tests
from artifacts.stages.judge import JudgeParameters
from eval_gates.drafted import Drafted
from eval_gates.judge import overall
from eval_gates.load_test import LoadTest, LoadTestGate, judge_load_test, read_load_test
from eval_gates.records import Verdict
from eval_gates.speed.report import SpeedReport


def side(rate: Any, failed: int = 0) -> LoadTest:
    return LoadTest(
        output_tokens_per_s=rate,
        engine_version="0.32.0",
        requests=16,
        failed_requests=failed,
        ttft_ms_p50=10.0,
        tpot_ms_p50=2.0,
        itl_ms_p50=3.0,
    )


def judged(before: float, after: float, minimum: float = 0.9, failed: int = 0) -> SpeedReport:
    gate = LoadTestGate(minimum_ratio={"cpu": minimum}, note="measured on a CPU")
    return judge_load_test(side(before), side(after, failed), gate, minimum).as_claim()


@pytest.mark.parametrize("rate", [0, math.nan, math.inf, -1.0, None])
def test_a_rate_that_is_none_is_refused(rate: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        side(rate)
    assert caught.value.errors()[0]["loc"] == ("output_tokens_per_s",)


def test_it_draws_the_line_without_rounding() -> None:
    assert judged(200.0, 150.0, 0.75).verdict == "pass"
    below = judged(200.0, math.nextafter(150.0, 0), 0.75)
    assert (below.verdict, below.note) == ("fail", "measured on a CPU")
    assert judged(100.0, 500.0, failed=3).reason == "3 benchmark requests failed, 0 are allowed"


@given(st.floats(1e-3, 1e6), st.floats(1e-3, 1e6), st.floats(0.01, 10), st.integers(0, 3))
def test_laws(before: float, after: float, minimum: float, failed: int) -> None:
    found = judged(before, after, minimum, failed)
    assert (found.verdict == "pass") == (after / before >= minimum and failed == 0)
    assert (found.estimate, found.lower, found.upper) == (after / before, None, None)


@pytest.mark.parametrize(("ratio", "verdict"), [(1.0, "pass"), (0.1, "fail")])
def test_it_blocks_as_a_gate_and_has_no_p_value(ratio: float, verdict: Verdict) -> None:
    from sample_reports import gate_report

    found = overall([gate_report(p_value=0.02)], [judged(100.0, 100.0 * ratio)])
    assert (found[0], found[2]) == (verdict, 0.02)


def test_a_verdict_of_today_is_read_as_it_is() -> None:
    today = {"verdict": "pass", "speed": []}
    assert read_load_test(today) is today
    assert read_load_test({**today, "throughput": None}) == today


class TestOfAKeptVerdict:
    """As the stage that measured it, and the one that judged it, left it."""

    DRAFTED = Drafted(drafts=10, draft_tokens=30, accepted_tokens=20)

    def record(self, role: str) -> Any:
        found = side(100.0).model_dump() | {"drafted": self.DRAFTED.model_dump()}
        return SimpleNamespace(result={**found, "duration_seconds": 3.0})

    def test_what_was_drafted_in_it_stands_in_the_verdict_as_then(self) -> None:
        roles = {"candidate.benchmark", "baseline.benchmark"}
        assert drafted_by([], roles, self.record) == {"throughput": self.DRAFTED}
        assert drafted_by([], set(), self.record) == {}

    def test_one_that_was_left_out_is_missed(self) -> None:
        """Where we served both sides there was one; somebody's endpoints had none."""
        gate = LoadTestGate(minimum_ratio={"cpu": 0.9})
        ours = JudgeParameters.model_construct(load_test=gate, accelerator="cpu")
        (claim,) = load_tests(ours, {"candidate.benchmark", "baseline.benchmark"}, self.record)
        assert claim.verdict == "pass"
        with pytest.raises(ValueError, match="missing"):
            load_tests(ours, set(), self.record)
        theirs = ours.model_copy(update={"accelerator": ""})
        assert load_tests(theirs, set(), self.record) == []
