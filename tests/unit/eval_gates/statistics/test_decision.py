"""Verdicts: what passes, what fails, what cannot be told, and how it is said."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval_gates.statistics.decision import (
    Decision,
    decide,
    questions_to_decide,
    smallest_decidable_margin,
)
from eval_gates.statistics.paired import (
    Interval,
    bca_interval,
    identical_interval,
    tango_interval,
)


def judge(lower: float, upper: float, margin: float, **changes: Any) -> Decision:
    facts: dict[str, Any] = {
        "questions": 500,
        "difference": (lower + upper) / 2,
        "baseline": 0.6,
        "alpha": 0.05,
    }
    return decide(Interval(lower, upper, "any method"), margin, **{**facts, **changes})


def test_a_bound_inside_the_margin_passes() -> None:
    decision = judge(-0.012, 0.01, 0.02)

    assert decision.verdict == "pass"
    assert not decision.suspicious
    assert decision.reason == (
        "the drop is at most 1.20 points (95 % confidence, 500 questions),"
        " inside the margin of 2.00 points"
    )


def test_a_drop_shown_to_exceed_the_margin_fails() -> None:
    decision = judge(-0.08, -0.03, 0.02)

    assert decision.verdict == "fail"
    assert "at least 3.00 points worse" in decision.reason


def test_a_margin_inside_the_interval_is_undecided_and_says_what_would_decide() -> None:
    decision = judge(-0.03, 0.01, 0.02)

    assert decision.verdict == "undecided"
    assert "as large as 3.00 points" in decision.reason
    assert "500 questions" in decision.reason
    assert "needs more questions (about 2000 if" in decision.reason
    assert "or a wider margin" in decision.reason


@pytest.mark.parametrize(("lower", "upper"), [(-0.02, 0.01), (-0.05, -0.02)])
def test_a_bound_exactly_on_the_margin_decides_nothing(lower: float, upper: float) -> None:
    assert judge(lower, upper, 0.02).verdict == "undecided"


def test_nothing_is_rounded_before_comparing() -> None:
    assert judge(math.nextafter(-0.02, 0), 0.01, 0.02).verdict == "pass"
    assert judge(math.nextafter(-0.02, -1), 0.01, 0.02).verdict == "undecided"
    assert judge(-0.05, math.nextafter(-0.02, -1), 0.02).verdict == "fail"


@given(st.floats(-1, 1), st.floats(-1, 1), st.floats(0.001, 0.999))
def test_the_verdict_follows_from_the_bounds_alone(
    first: float, second: float, margin: float
) -> None:
    lower, upper = sorted((first, second))

    verdict = judge(lower, upper, margin).verdict

    assert (verdict == "pass") == (lower > -margin)
    assert (verdict == "fail") == (upper < -margin)


@pytest.mark.parametrize("margin", [0.0, 1.0, -0.1, 1.5, math.nan])
def test_an_impossible_margin_is_refused(margin: float) -> None:
    with pytest.raises(ValueError, match="margin"):
        judge(-0.01, 0.01, margin)


@pytest.mark.parametrize(
    "changes",
    [
        {"lower": math.nan},
        {"upper": math.nan},
        {"upper": math.inf},
        {"difference": math.nan},
        {"baseline": math.nan},
        {"questions": 0},
        {"lower": 0.5, "upper": 0.1},
    ],
)
def test_a_missing_value_never_passes(changes: dict[str, Any]) -> None:
    facts = {"lower": -0.01, "upper": 0.01, "margin": 0.02, "difference": 0.0, **changes}
    with pytest.raises(ValueError, match=r"missing value|without questions|is above"):
        judge(**facts)


@pytest.mark.parametrize("baseline", [0.24, 0.25])
def test_a_baseline_that_guesses_blinds_a_multiple_choice_gate(baseline: float) -> None:
    decision = judge(-0.01, 0.01, 0.02, baseline=baseline, floor=0.25)

    assert decision.verdict == "undecided"
    assert "no better than guessing (25.0%)" in decision.reason


def test_a_baseline_that_solves_nothing_blinds_the_gate() -> None:
    decision = judge(-0.01, 0.01, 0.02, baseline=0.0)

    assert decision.verdict == "undecided"
    assert "scores nothing on 500 questions" in decision.reason


def test_a_blind_gate_does_not_fail_either() -> None:
    assert judge(-0.5, -0.3, 0.02, baseline=0.2, floor=0.25).verdict == "undecided"


def test_a_pass_that_guessing_could_reach_says_so() -> None:
    near = judge(-0.1, 0.1, 0.15, baseline=0.32, floor=0.25)
    far = judge(-0.1, 0.1, 0.15, baseline=0.62, floor=0.25)

    assert near.verdict == far.verdict == "pass"
    assert "only 7.00 points above guessing" in near.reason
    assert "guess" not in far.reason


def test_a_gain_beyond_the_margin_passes_but_is_suspicious() -> None:
    decision = judge(0.03, 0.09, 0.02)

    assert decision.verdict == "pass"
    assert decision.suspicious
    assert "at least 3.00 points better" in decision.reason
    assert "suspicious: 6.00 points better" in decision.reason


def test_a_gain_within_the_margin_is_not_suspicious() -> None:
    assert not judge(0.0, 0.03, 0.02).suspicious


@pytest.mark.parametrize(
    ("questions", "flips"),
    [(1, 0), (24, 0), (24, 1), (24, 5), (164, 0), (164, 1), (164, 2), (1000, 0), (1000, 20)],
)
def test_smallest_decidable_margin_is_where_the_verdict_turns(questions: int, flips: int) -> None:
    smallest = smallest_decidable_margin(questions, flips, alpha=0.05)
    gained = flips // 2
    interval = tango_interval(questions - flips, flips - gained, gained, 0, 0.05)
    facts: dict[str, Any] = {"questions": questions, "difference": 0.0}

    above = judge(interval.lower, interval.upper, smallest + 1e-6, **facts)
    below = judge(interval.lower, interval.upper, smallest - 1e-6, **facts)

    assert above.verdict == "pass"
    assert below.verdict == "undecided"


def test_humaneval_cannot_show_one_point() -> None:
    smallest = smallest_decidable_margin(164, alpha=0.05)

    assert smallest == pytest.approx(0.01623, abs=1e-5)
    interval = tango_interval(40, 0, 0, 124, 0.05)
    decision = decide(interval, 0.01, questions=164, difference=0.0, baseline=40 / 164, alpha=0.05)
    assert decision.verdict == "undecided"
    assert "164 questions cannot pass a margin under 1.62 points" in decision.reason


def test_equal_scores_on_few_documents_are_undecided_in_words() -> None:
    interval = bca_interval([0.0] * 24, 0.05, seed=0)

    decision = decide(interval, 0.08, questions=24, difference=0.0, baseline=0.3, alpha=0.05)

    assert interval == identical_interval(0.0, 24, 0.05)
    assert decision.verdict == "undecided"
    assert "every difference was the same" in decision.reason


@pytest.mark.parametrize("questions", [0, -1])
def test_smallest_decidable_margin_needs_questions(questions: int) -> None:
    with pytest.raises(ValueError, match="no questions"):
        smallest_decidable_margin(questions, alpha=0.05)


def test_smallest_decidable_margin_refuses_impossible_flips() -> None:
    with pytest.raises(ValueError, match="flips"):
        smallest_decidable_margin(10, 11, alpha=0.05)


def test_questions_to_decide_follows_the_root_law() -> None:
    interval = Interval(-0.03, 0.01, "any method")

    assert questions_to_decide(interval, 0.02, 500, -0.01) == 2000
    assert questions_to_decide(interval, 0.01, 500, -0.01) is None


def test_more_questions_do_decide_when_told_so() -> None:
    interval = tango_interval(60, 3, 3, 34, 0.05)
    needed = questions_to_decide(interval, 0.02, 100, 0.0)

    assert needed is not None
    scale = math.ceil(needed / 100) + 1
    larger = tango_interval(60 * scale, 3 * scale, 3 * scale, 34 * scale, 0.05)
    assert interval.lower < -0.02 < larger.lower
