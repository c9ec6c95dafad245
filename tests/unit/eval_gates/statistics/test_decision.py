"""Verdicts: what passes, what fails, what cannot be seen, and how it is said."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_findings import ALPHA, POINTS, RECOVERY, finding, judged, scores

from eval_gates.statistics.comparison import Comparison
from eval_gates.statistics.decision import Decision, decide
from eval_gates.statistics.finding import above_guessing_p


class TestVerdictsInWords:
    def test_pass(self) -> None:
        decision = decide(finding("pass"), scores())

        assert decision == Decision(
            "pass",
            "the drop is at most 1.20 points (95 % confidence, decided after 420 of 500 questions),"
            " inside a margin of 2.00 points",
        )

    def test_pass_where_the_last_question_decided(self) -> None:
        decision = decide(finding("pass", decided_at=500), scores())
        assert "(95 % confidence, 500 questions)" in decision.reason

    def test_pass_that_shows_a_gain(self) -> None:
        decision = decide(finding("pass", lower=0.004, upper=0.02), scores(candidate=0.61))
        assert decision.reason.startswith("the candidate is at least 0.40 points better (95 %")

    def test_fail(self) -> None:
        decision = decide(finding("fail"), scores(candidate=0.55))

        assert decision == Decision(
            "fail",
            "the candidate is at least 3.00 points worse (95 % confidence, decided after 420 of"
            " 500 questions), not inside a margin of 2.00 points",
        )

    def test_recovery(self) -> None:
        passed = decide(finding("pass", comparison=RECOVERY, lower=0.01), scores())
        failed = decide(finding("fail", comparison=RECOVERY), scores(candidate=0.5))

        assert passed.verdict == "pass"
        assert passed.reason.startswith("the candidate keeps more than 95 % of the baseline (95 %")
        assert failed.verdict == "fail"
        assert failed.reason.startswith(
            "the candidate keeps no more than 95 % of the baseline (95 %"
        )

    def test_open(self) -> None:
        decision = decide(finding("open"), scores())

        assert decision.verdict == "undecided"
        assert decision.reason.startswith(
            "the drop may be as large as 3.00 points (95 % confidence, 500 questions), not inside"
            " a margin of 2.00 points; needs more questions (in all about "
        )
        assert "or a wider margin" in decision.reason

    def test_open_recovery(self) -> None:
        decision = decide(finding("open", comparison=RECOVERY), scores(candidate=0.59))
        assert decision.verdict == "undecided"
        assert decision.reason.startswith("a recovery of 95 % is neither shown nor refuted (95 %")

    def test_one_question(self) -> None:
        decision = decide(finding("open", n=1), scores())
        assert "(95 % confidence, 1 question)" in decision.reason

    def test_a_small_drop_is_not_shown_as_none(self) -> None:
        tight = finding("pass", comparison=Comparison.points(0.00005), lower=-0.00002)
        assert decide(tight, scores()).reason.startswith("the drop is at most 0.0020 points")

    def test_alpha_is_the_confidence(self) -> None:
        assert "99 % confidence" in decide(finding("pass", alpha=0.01), scores()).reason
        assert "97.5 % confidence" in decide(finding("pass", alpha=0.025), scores()).reason

    @pytest.mark.parametrize("verdict", ["pass", "fail"])
    def test_later_answers_against_the_verdict_make_no_nonsense(self, verdict: str) -> None:
        """A verdict stays as it fell; the bound over all answers may contradict it."""
        first, then = (1.0, 0.0) if verdict == "pass" else (0.0, 1.0)
        after = [first] * 300 + [then] * (700 if verdict == "pass" else 60_000)
        decision = judged([1.0] * len(after), after, POINTS)

        assert decision.verdict == verdict
        assert "later answers point the other way" in decision.reason
        assert "at most 7" not in decision.reason
        assert "at least" not in decision.reason


class TestNotANumber:
    @pytest.mark.parametrize("field", ["lower", "upper"])
    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
    @pytest.mark.parametrize("verdict", ["pass", "fail", "open"])
    def test_a_missing_bound_is_not_judged(self, field: str, value: float, verdict: str) -> None:
        with pytest.raises(ValueError, match="missing value"):
            decide(finding(verdict, **{field: value}), scores())

    @pytest.mark.parametrize("field", ["baseline", "candidate"])
    def test_a_missing_score_is_not_judged(self, field: str) -> None:
        with pytest.raises(ValueError, match="missing value"):
            decide(finding("pass"), scores(**{field: math.nan}))


class TestBlind:
    def multiple_choice(self, right: int, n: int, verdict: str = "pass") -> Decision:
        before = [1.0] * right + [0.0] * (n - right)
        share = right / n
        return decide(
            finding(verdict, n=n),
            scores(share, share, guessing=0.25, above_guessing_p=above_guessing_p(before, 0.25)),
        )

    def test_above_guessing_by_luck_is_blind(self) -> None:
        """27 of 100, a point estimate above 25 %, is what guessing gives."""
        decision = self.multiple_choice(27, 100)

        assert decision.verdict == "undecided"
        assert decision.reason.startswith(
            "the gate is blind: the baseline's 27.0% is not shown to be better than guessing"
            " (25.0%; p = 0.36), so a drop could not be seen"
        )

    @pytest.mark.parametrize(
        ("right", "n", "verdict"),
        [
            (20, 100, "undecided"),
            (25, 100, "undecided"),
            (32, 100, "undecided"),
            (33, 100, "pass"),
            (60, 100, "pass"),
            (270, 1000, "undecided"),
            (275, 1000, "pass"),
        ],
    )
    def test_where_it_begins_to_see(self, right: int, n: int, verdict: str) -> None:
        assert self.multiple_choice(right, n).verdict == verdict

    def test_it_does_not_fail_either(self) -> None:
        decision = self.multiple_choice(27, 100, "fail")
        assert decision.verdict == "undecided"
        assert "blind" in decision.reason

    @pytest.mark.parametrize("verdict", ["pass", "fail", "open"])
    def test_a_baseline_that_solves_nothing(self, verdict: str) -> None:
        decision = decide(finding(verdict), scores(0.0, 0.0))

        assert decision.verdict == "undecided"
        assert "blind: the baseline scores nothing on 500 questions" in decision.reason

    @given(
        verdict=st.sampled_from(["pass", "fail", "open"]),
        baseline=st.floats(0, 1),
        p=st.floats(0, 1),
    )
    def test_nothing_is_judged_that_cannot_be_seen(
        self, verdict: str, baseline: float, p: float
    ) -> None:
        seen = scores(baseline, 1.0, guessing=0.25, above_guessing_p=p)
        decision = decide(finding(verdict), seen)
        blind = p > ALPHA or baseline <= 0.25
        assert ("blind" in decision.reason) == blind
        if verdict != "open":
            assert (decision.verdict == verdict) == (not blind)


class TestNoBetterThanGuessing:
    def test_a_candidate_that_guesses_does_not_pass_a_wide_margin(self) -> None:
        wide = finding("pass", comparison=Comparison.points(0.2), lower=-0.19)
        for candidate in (0.25, 0.24):
            decision = decide(wide, scores(0.4, candidate, guessing=0.25))
            assert decision.verdict == "undecided"
            assert "is no better than guessing (25.0%) on 500 questions" in decision.reason
            assert "that a margin of 20.00 points allows this says nothing" in decision.reason
        assert decide(wide, scores(0.4, 0.26, guessing=0.25)).verdict == "pass"

    def test_nor_does_one_that_solves_nothing(self) -> None:
        wide = finding("pass", comparison=Comparison.recovery(0.1), lower=0.01)
        decision = decide(wide, scores(0.05, 0.0))
        assert decision.verdict == "undecided"
        assert "the candidate scores nothing" in decision.reason
        assert "that a recovery of 10 % allows this" in decision.reason

    def test_it_may_fail(self) -> None:
        decision = decide(finding("fail"), scores(0.4, 0.2, guessing=0.25))
        assert decision.verdict == "fail"

    def test_a_pass_that_guessing_could_reach_says_so(self) -> None:
        wide = finding("pass", comparison=Comparison.points(0.15), lower=-0.1)
        near = decide(wide, scores(0.32, 0.32, guessing=0.25))
        far = decide(wide, scores(0.62, 0.62, guessing=0.25))

        assert near.verdict == far.verdict == "pass"
        assert "only 7.00 points above guessing" in near.reason
        assert "guess" not in far.reason


class TestSuspicious:
    @pytest.mark.parametrize("verdict", ["pass", "open"])
    def test_a_gain_beyond_the_margin(self, verdict: str) -> None:
        decision = decide(finding(verdict), scores(0.6, 0.66))

        assert decision.suspicious
        assert "; suspicious: 6.00 points better than the baseline" in decision.reason

    def test_a_gain_within_the_margin(self) -> None:
        decision = decide(finding("pass"), scores(0.6, 0.615))
        assert not decision.suspicious
        assert "suspicious" not in decision.reason

    def test_a_recovery_margin_is_a_share_of_the_baseline(self) -> None:
        found = finding("pass", comparison=RECOVERY)
        assert not decide(found, scores(0.6, 0.629)).suspicious
        assert decide(found, scores(0.6, 0.631)).suspicious

    def test_it_is_told_of_a_blind_gate_too(self) -> None:
        blind = decide(finding("pass"), scores(0.2, 0.6, guessing=0.25, above_guessing_p=0.99))
        assert blind.suspicious
        assert blind.verdict == "undecided"


@given(
    verdict=st.sampled_from(["pass", "fail", "open"]),
    baseline=st.floats(0.01, 1),
    candidate=st.floats(0.01, 1),
    comparison=st.sampled_from([POINTS, RECOVERY]),
)
def test_where_it_sees_the_verdict_is_the_findings(
    verdict: str, baseline: float, candidate: float, comparison: Comparison
) -> None:
    found = dataclasses.replace(finding(verdict), comparison=comparison)
    decision = decide(found, scores(baseline, candidate, flip_size=1.0))

    assert decision.verdict == ("undecided" if verdict == "open" else verdict)
    allowed = comparison.allowed_drop(baseline)
    assert decision.suspicious == (candidate - baseline > allowed)
