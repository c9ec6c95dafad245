"""One record of a gate: exact figures, its verdict in plain words, and what blocks."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_reports import gate_report, speed_claim

from eval_gates.gate_result import blocks
from eval_gates.quality_result import questions_missing
from eval_gates.statistics.bound import mean_bounds
from eval_gates.verdicts import overall


def small(**changes: Any) -> Any:
    """20 questions, all right on both sides."""
    facts = {"n": 20, "planned": 20, "baseline": 1.0, "candidate": 1.0, "estimate": 0.0}
    more = {"threshold": -0.2, "bound": -0.3, "flips": 0, "gains": 0, "verdict": "undecided"}
    return gate_report(**facts | more | changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {},
            "20 of 20 on both sides; about 10 more questions are needed to show a drop below 20 "
            "points",
        ),
        ({"verdict": "pass"}, "20 of 20 on both sides; the drop is below 20 points"),
        (
            {"candidate": 0.5, "estimate": -0.5, "verdict": "fail", "flips": 10},
            "10 of 20, the baseline 20; the drop is above 20 points",
        ),
        (
            {"candidate": 0.75, "estimate": -0.25, "flips": 5},
            "15 of 20, the baseline 20; more questions would not show less than 20 points",
        ),
        (
            {"threshold": 0.0, "value": "candidate - 0.99 baseline", "margin": "99 % recovery"},
            "20 of 20 on both sides; about 600 more questions are needed to show that it keeps 99 "
            "% recovery",
        ),
        (
            {"bound": -0.1, "reason": "the gate is insensitive"},
            "20 of 20 on both sides; the gate is insensitive",
        ),
    ],
)
def test_each_verdict_is_explained(changes: dict[str, Any], words: str) -> None:
    assert small(**changes).words == words


@given(n=st.integers(20, 60), margin=st.sampled_from([0.02, 0.03, 0.05]))
def test_as_many_questions_as_the_words_say_decide_it(n: int, margin: float) -> None:
    """Without a changed answer, at the bound's own level."""
    bound = mean_bounds([0.0] * n, 0.05).lower
    gate = small(n=n, threshold=-margin, bound=bound)
    if bound > -margin:
        return
    more = questions_missing(gate)
    assert more is not None
    assert mean_bounds([0.0] * (n + more + more // 5 + 2), 0.05).lower > -margin
    if more > 20:
        assert mean_bounds([0.0] * (n + more // 2), 0.05).lower <= -margin


def test_a_margin_is_shown_in_full_and_a_figure_is_exact() -> None:
    gate = gate_report(threshold=-0.0075, bound=-0.1 - 0.2)
    assert gate.show_bound(1) == "> -30.0, margin -0.75"
    assert gate.bound == -0.1 - 0.2
    assert gate.show_estimate() == "-0.14"
    assert "recovery" not in gate_report(recovery=None).details


def test_a_recovery_margin_is_shown_as_one() -> None:
    changes = {"threshold": 0.0, "margin": "99 % recovery", "recovery": 0.9973}
    gate = gate_report(value="candidate - 0.99 baseline", **changes)
    assert gate.show_bound() == "99.7 % of the baseline, margin 99 % recovery"
    assert gate.allowed == pytest.approx(-0.01 * gate.baseline)


def test_both_sides_of_a_ratio_are_shown() -> None:
    assert speed_claim().show_sides(1) == ("2,050 tokens/s", "3,075 tokens/s")
    assert speed_claim(lower=None).show_bound() == "at least 1"


@pytest.mark.parametrize(
    ("verdict", "tier"),
    list(itertools.product(("pass", "fail", "undecided"), ("critical", "supporting", "advisory"))),
)
def test_what_blocks_is_what_the_judge_lets_block(verdict: str, tier: Any) -> None:
    # A critical gate that passed is next to it, for a p-value.
    gates = [gate_report(verdict=verdict, tier=tier), gate_report(name="code")]
    assert blocks(verdict, tier) == (overall(gates)[0] != "pass")  # type: ignore[arg-type]
    load = [speed_claim(verdict=verdict, tier=tier)]
    assert load[0].blocks == blocks(verdict, tier)  # type: ignore[arg-type]
