"""Verdicts: what passes, what fails, what cannot be seen, and how it is said."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_findings import ALPHA, POINTS, RECOVERY, finding, scores

from eval_gates.quality_gate import judge_scores
from eval_gates.statistics.assay_sensitivity import SensitivityCheck
from eval_gates.statistics.comparison import Comparison


@pytest.mark.parametrize(
    ("state", "comparison", "reason"),
    [
        ("pass", POINTS, "the drop is at most 1.20 points, inside a margin of 2.00 points (95 %"),
        ("fail", POINTS, "the drop is at least 3.00 points, not inside a margin of 2.00 points"),
        ("open", POINTS, "the drop may be as large as 3.00 points, not shown to be inside"),
        ("pass", RECOVERY, "more than 95 % of the baseline is kept (95 % confidence, look 2 of 3"),
        ("fail", RECOVERY, "less than 95 % of the baseline is kept"),
    ],
)
def test_a_verdict_says_what_is_shown(state: str, comparison: Comparison, reason: str) -> None:
    lower = {"lower": 0.01} if (state, comparison) == ("pass", RECOVERY) else {}
    decision = judge_scores(finding(state, comparison=comparison, **lower), scores())
    assert decision.verdict == ("undecided" if state == "open" else state)
    assert decision.reason.startswith(reason)


@pytest.mark.parametrize(
    ("changes", "needs"),
    [
        ({"n": 1000, "number": 3}, "needs more questions (in all about 2250"),
        ({"n": 40, "planned": 40}, "cannot pass even if no answer changes, 166 could"),
        ({"comparison": Comparison.points(1e-3), "planned": 9999}, "no benchmark has enough"),
    ],
)
def test_an_open_gate_says_what_it_needs(changes: dict[str, Any], needs: str) -> None:
    difference = -0.0009 if "comparison" in changes else 0.0
    decision = judge_scores(finding("open", **changes), scores(candidate=0.6 + difference))
    assert needs in decision.reason


@pytest.mark.parametrize("state", ["pass", "fail", "open"])
def test_clusters_are_not_called_questions(state: str) -> None:
    reason = judge_scores(finding(state), scores(unit="clusters")).reason
    assert "clusters" in reason
    assert "questions" not in reason


@pytest.mark.parametrize(
    ("bound", "shown"),
    [(0.0, "0.00 points"), (-0.00005, "0.0050 points"), (-0.0055, "0.55 points")],
)
def test_a_small_bound_is_not_shown_as_none(bound: float, shown: str) -> None:
    assert f"at most {shown}" in judge_scores(finding("pass", lower=bound), scores()).reason


class TestNotANumber:
    @pytest.mark.parametrize("field", ["lower", "upper"])
    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
    @pytest.mark.parametrize("verdict", ["pass", "fail", "open"])
    def test_a_missing_bound_is_not_judged(self, field: str, value: float, verdict: str) -> None:
        with pytest.raises(ValueError, match="finite"):
            judge_scores(finding(verdict, **{field: value}), scores())

    @pytest.mark.parametrize("field", ["baseline", "candidate"])
    def test_a_missing_score_is_not_judged(self, field: str) -> None:
        with pytest.raises(ValueError, match="finite"):
            judge_scores(finding("pass"), scores(**{field: math.nan}))


GUESSING = SensitivityCheck("guessing", 0.25, p_insensitive=0.4)


class TestBlind:
    @pytest.mark.parametrize("verdict", ["pass", "open"])
    def test_a_margin_that_reaches_down_to_guessing(self, verdict: str) -> None:
        decision = judge_scores(
            finding(verdict), scores(0.297, 0.29, sensitivity_checks=(GUESSING,))
        )

        assert decision.verdict == "undecided"
        assert decision.reason.startswith("the gate is insensitive: a margin of 2.00 points")
        assert "(25.0%), as the baseline scores 29.7% (p = 0.4)" in decision.reason

    @pytest.mark.parametrize(
        ("p", "needs"),
        [(0.2, "in all about 3723 if these scores stay"), (1.0, "another suite, or")],
    )
    def test_it_says_what_it_needs(self, p: float, needs: str) -> None:
        checks = (SensitivityCheck("unrelated", 0.33, p_insensitive=p),)
        asked = finding("pass", n=2000, planned=2000, number=3)
        assert needs in judge_scores(asked, scores(sensitivity_checks=checks)).reason

    def test_what_is_shown_to_be_worse_fails_all_the_same(self) -> None:
        decision = judge_scores(finding("fail"), scores(0.3, 0.1, sensitivity_checks=(GUESSING,)))
        assert decision.verdict == "fail"

    def test_the_highest_of_those_it_does_not_see_is_named(self) -> None:
        others = (
            SensitivityCheck("nothing", 0.0, p_insensitive=0.01),
            SensitivityCheck("empty", 0.02, p_insensitive=0.2),
            SensitivityCheck("unrelated", 0.11, p_insensitive=0.3),
        )
        reason = judge_scores(finding("pass"), scores(0.13, 0.12, sensitivity_checks=others)).reason
        assert "the score of its answers on other questions (11.0%)" in reason

    @given(
        verdict=st.sampled_from(["pass", "fail", "open"]),
        p=st.lists(st.floats(0, 1), min_size=1, max_size=3),
    )
    def test_nothing_passes_that_cannot_be_seen(self, verdict: str, p: list[float]) -> None:
        sensitivity_checks = tuple(SensitivityCheck("guessing", 0.25, each) for each in p)
        decision = judge_scores(
            finding(verdict), scores(0.5, 0.49, sensitivity_checks=sensitivity_checks)
        )
        insensitive = max(p) > ALPHA
        assert ("insensitive" in decision.reason) == (insensitive and verdict != "fail")
        assert (decision.verdict == "pass") == (verdict == "pass" and not insensitive)
        assert (decision.verdict == "fail") == (verdict == "fail")


class TestAnswersThatSayNothing:
    def test_a_stock_answer_does_not_pass(self) -> None:
        """However well it scores, it scores that on every document."""
        stock = scores(0.2, 0.19, shuffled_score=0.19)
        decision = judge_scores(finding("open", lower=-0.012), stock)
        assert decision.verdict == "undecided"
        assert "score 19.0% on other questions" in decision.reason

    def test_nor_does_one_that_solves_nothing(self) -> None:
        wide = finding("pass", comparison=Comparison.recovery(0.1), lower=0.01)
        decision = judge_scores(wide, scores(0.05, 0.0))
        assert decision.verdict == "undecided"
        assert "the candidate scores 0.0% on 500 questions" in decision.reason

    def test_it_may_fail(self) -> None:
        decision = judge_scores(finding("fail"), scores(0.4, 0.2, shuffled_score=0.2))
        assert decision.verdict == "fail"


class TestSuspicious:
    def test_a_shown_gain_beyond_the_margin_is_undecided(self) -> None:
        decision = judge_scores(finding("pass", lower=0.03), scores(0.6, 0.66))
        assert (decision.verdict, decision.suspicious) == ("undecided", True)
        assert "max_gain" in decision.reason
        raised = judge_scores(finding("pass", lower=0.03), scores(0.6, 0.66, max_gain=0.1))
        assert (raised.verdict, raised.suspicious) == ("pass", False)

    def test_a_gain_that_is_not_shown_is_chance(self) -> None:
        assert judge_scores(finding("pass", lower=-0.001), scores(0.6, 0.66)).verdict == "pass"
        assert not judge_scores(finding("open"), scores(0.6, 0.66)).suspicious

    def test_a_gain_within_the_margin(self) -> None:
        decision = judge_scores(finding("pass"), scores(0.6, 0.615))
        assert not decision.suspicious
        assert "suspicious" not in decision.reason

    def test_a_recovery_margin_is_a_share_of_the_baseline(self) -> None:
        found = finding("pass", comparison=RECOVERY, lower=0.031)
        assert not judge_scores(found, scores(0.6, 0.629)).suspicious
        assert judge_scores(found, scores(0.6, 0.631)).suspicious

    def test_it_is_told_of_a_blind_gate_too(self) -> None:
        gained = finding("pass", lower=0.3)
        insensitive = judge_scores(gained, scores(0.2, 0.6, sensitivity_checks=(GUESSING,)))
        assert insensitive.suspicious
        assert insensitive.verdict == "undecided"


def test_a_baseline_that_was_cut_off_is_undecided() -> None:
    assert judge_scores(finding("pass"), scores(cut_off=0.05)).verdict == "pass"
    cut = judge_scores(finding("pass"), scores(cut_off=0.06))
    assert cut.verdict == "undecided"
    assert "max_tokens" in cut.reason
    assert judge_scores(finding("fail"), scores(cut_off=0.9)).verdict == "fail"
