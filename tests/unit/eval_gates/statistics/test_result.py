"""Findings: one shape for both tests, p-values that agree with the verdict."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import multinomial

from eval_gates.statistics.comparison import Comparison
from eval_gates.statistics.paired import GRADED, IDENTICAL, graded_interval, tango_interval
from eval_gates.statistics.result import (
    SEQUENTIAL,
    GateTestResult,
    gate_interval,
    paired_interval,
    recovery_interval,
    run_fixed_test,
    run_sequential_test,
)

ALPHAS = st.sampled_from([0.001, 0.0125, 0.05, 0.2])
Pairs = list[tuple[float, float]]


def counted(both: int, lost: int, gained: int, neither: int = 0) -> tuple[list[float], list[float]]:
    before = [1.0] * both + [1.0] * lost + [0.0] * gained + [0.0] * neither
    after = [1.0] * both + [0.0] * lost + [1.0] * gained + [0.0] * neither
    return before, after


COUNTS = st.tuples(
    st.integers(1, 400), st.integers(0, 30), st.integers(0, 30), st.integers(0, 200)
).map(lambda counts: counted(*counts))
COMPARISONS = st.one_of(
    st.sampled_from([0.01, 0.03, 0.1, 0.4]).map(Comparison.points),
    st.sampled_from([0.99, 0.95, 0.8, 0.5]).map(Comparison.recovery),
)


class TestFixed:
    @settings(max_examples=50, deadline=None)
    @given(answers=COUNTS, comparison=COMPARISONS, alpha=ALPHAS)
    def test_the_p_value_agrees_with_the_verdict_at_alpha(
        self, answers: tuple[list[float], list[float]], comparison: Comparison, alpha: float
    ) -> None:
        finding = run_fixed_test(*answers, comparison, alpha)

        assert (finding.verdict == "pass") == (finding.p_value <= alpha)
        assert (finding.verdict == "pass") == (finding.lower > comparison.threshold)
        assert (finding.verdict == "fail") == (finding.upper < comparison.threshold)
        if finding.verdict == "fail":
            assert finding.p_value == 1.0

    @settings(max_examples=80, deadline=None)
    @given(answers=COUNTS, comparison=COMPARISONS, factor=st.floats(0.2, 5))
    def test_the_p_value_is_the_level_at_which_it_turns(
        self, answers: tuple[list[float], list[float]], comparison: Comparison, factor: float
    ) -> None:
        """Holm compares it with other levels than alpha: it must be right there, too."""
        p = run_fixed_test(*answers, comparison, 0.05).p_value
        level = min(factor * p, 0.49)
        if 1e-6 < p < 0.49 and not 0.99 < factor < 1.01:
            verdict = run_fixed_test(*answers, comparison, level).verdict
            assert (verdict == "pass") == (level > p)

    @settings(max_examples=15, deadline=None)
    @given(
        scores=st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=2, max_size=30),
        comparison=COMPARISONS,
        alpha=ALPHAS,
    )
    def test_the_p_value_of_graded_scores_agrees_too(
        self, scores: Pairs, comparison: Comparison, alpha: float
    ) -> None:
        before, after = [a for a, _ in scores], [b for _, b in scores]
        finding = run_fixed_test(before, after, comparison, alpha)
        assert (finding.verdict == "pass") == (finding.p_value <= alpha)

    @pytest.mark.parametrize("n", range(41, 80))
    def test_it_agrees_close_to_the_boundary(self, n: int) -> None:
        """Zero flips: a drop of 5 points would show none in 0.95^59 = 4.8 % of runs."""
        finding = run_fixed_test(*counted(n, 0, 0), Comparison.points(0.05), 0.05)
        assert (finding.p_value <= 0.05) == (finding.verdict == "pass") == (n >= 59)

    @pytest.mark.parametrize("n", range(80, 400, 20))
    @pytest.mark.parametrize("factor", [1 - 1e-6, 1 + 1e-6])
    def test_it_agrees_a_hair_beside_the_level_at_which_it_turns(
        self, n: int, factor: float
    ) -> None:
        """Zero flips: the bound lies on the margin m where alpha = (1 - m)^n."""
        turns = 0.99**n
        alpha = turns * factor
        finding = run_fixed_test(*counted(n, 0, 0), Comparison.points(0.01), alpha)

        assert (finding.p_value <= alpha) == (finding.verdict == "pass") == (factor > 1)
        assert finding.p_value == pytest.approx(turns, rel=0.006)

    def test_right_or_wrong_in_points_is_gaffkes(self) -> None:
        before, after = counted(80, 3, 2, 15)
        finding = run_fixed_test(before, after, Comparison.points(0.1), 0.05)
        tango = tango_interval(80, 3, 2, 15, 0.05)

        assert finding.method == GRADED
        assert finding.lower == pytest.approx(tango.lower, abs=0.01)
        assert finding.lower < tango.lower
        assert (finding.n, finding.e_process) == (100, ())
        assert (finding.verdict, finding.decided_at) == ("pass", 100)

    @pytest.mark.parametrize(
        ("margin", "questions"),
        [
            (0.25, 9),
            (0.25, 10),
            (0.25, 16),
            (0.1, 25),
            (0.1, 28),
            (0.1, 44),
            (0.05, 52),
            (0.05, 91),
        ],
    )
    @pytest.mark.parametrize("gained", [0.0, 0.01, 0.05])
    def test_a_variant_at_the_margin_passes_in_5_percent(
        self, margin: float, questions: int, gained: float
    ) -> None:
        """Every number of losses and gains with its chance: Tango's bound errs in up to 7.5 %."""
        chances = (margin + gained, gained, 1 - margin - 2 * gained)
        passed = 0.0
        for lost in range(questions + 1):
            for won in range(questions - lost + 1):
                same = questions - lost - won
                chance = float(multinomial.pmf((lost, won, same), questions, chances))
                if chance > 1e-5:
                    bound = gate_interval(*counted(same, lost, won), 0.05).lower
                    passed += chance * (bound > -margin)
        assert passed <= 0.05

    def test_open_is_decided_nowhere(self) -> None:
        finding = run_fixed_test(*counted(19, 1, 2), Comparison.points(0.05), 0.05)
        assert (finding.verdict, finding.decided_at) == ("open", None)
        assert 0.05 < finding.p_value < 1

    def test_real_scores_go_to_gaffkes_bound(self) -> None:
        finding = run_fixed_test([0.5, 0.25, 0.75], [0.5, 0.5, 0.5], Comparison.points(0.9), 0.05)
        assert finding.method == GRADED

    def test_equal_real_scores(self) -> None:
        finding = run_fixed_test([0.5, 0.25], [0.5, 0.25], Comparison.points(0.9), 0.05)
        assert finding.method == IDENTICAL
        assert finding.verdict == "pass"


class TestFixedRecovery:
    @pytest.mark.parametrize("n", [2, 5, 20])
    def test_a_handful_without_flips_shows_no_recovery(self, n: int) -> None:
        """What the baseline knows is no evidence of what the candidate kept."""
        for before in ([1.0, 0.0] * n, [0.25, 0.5] * n):
            finding = run_fixed_test(before, before, Comparison.recovery(0.99), 0.05)
            assert finding.verdict == "open"

    @pytest.mark.parametrize("share", [0.99, 0.95, 0.8])
    @pytest.mark.parametrize("n", [30, 100, 400, 2000])
    def test_a_candidate_on_the_boundary_rarely_passes(self, share: float, n: int) -> None:
        """True recovery exactly `share`, by losses alone; the p-value is not needed for this."""
        draw = random.Random(n)
        passed = 0
        for _ in range(150):
            before = [float(draw.random() < 0.5) for _ in range(n)]
            after = [score * (draw.random() < share) for score in before]
            passed += recovery_interval(before, after, share, 0.05).lower > 0
        assert passed <= 0.05 * 150 + 8  # three standard errors above alpha

    def test_enough_questions_do_pass(self) -> None:
        finding = run_fixed_test(*counted(1500, 5, 5, 490), Comparison.recovery(0.98), 0.05)
        assert finding.verdict == "pass"
        assert finding.lower > 0

    def test_what_is_plainly_lost_fails(self) -> None:
        finding = run_fixed_test(*counted(400, 200, 0, 200), Comparison.recovery(0.95), 0.05)
        assert finding.verdict == "fail"
        assert finding.upper < 0

    @settings(max_examples=50, deadline=None)
    @given(answers=COUNTS, share=st.floats(0.05, 0.99), alpha=ALPHAS)
    def test_the_bounds_hold_the_estimate(
        self, answers: tuple[list[float], list[float]], share: float, alpha: float
    ) -> None:
        before, after = answers
        interval = recovery_interval(before, after, share, alpha)
        value = (sum(after) - share * sum(before)) / len(before)
        assert interval.lower - 1e-9 <= value <= interval.upper + 1e-9


class TestSequential:
    def found(
        self, lost: int, n: int, comparison: Comparison, alpha: float = 0.05
    ) -> GateTestResult:
        before, after = counted(n - lost, lost, 0)
        random.Random(1).shuffle(after)
        return run_sequential_test(before, after, comparison, alpha, None)

    def test_it_is_the_tests_result(self) -> None:
        finding = self.found(2, 200, Comparison.points(0.1))

        assert finding.method == SEQUENTIAL
        assert finding.verdict == "pass"
        assert finding.decided_at is not None
        assert finding.decided_at < finding.n == 200
        assert finding.lower > -0.1
        assert finding.e_process[-1].questions == 200
        assert finding.e_process[-1].mean == pytest.approx(-0.01)

    @settings(max_examples=40, deadline=None)
    @given(lost=st.integers(0, 100), comparison=COMPARISONS, alpha=ALPHAS)
    def test_the_p_value_agrees_with_the_verdict(
        self, lost: int, comparison: Comparison, alpha: float
    ) -> None:
        finding = self.found(lost, 150, comparison, alpha)

        if finding.verdict == "pass":
            assert finding.p_value <= alpha * (1 + 1e-12)
            assert finding.decided_at is not None
        if finding.verdict == "open":
            assert finding.p_value > alpha * (1 - 1e-12)
            assert finding.decided_at is None
            assert finding.lower <= comparison.threshold + 1e-6
            assert finding.upper >= comparison.threshold - 1e-6

    def test_looking_costs_something(self) -> None:
        """At one look the fixed interval knows more, from the same answers."""
        before, after = counted(900, 22, 18, 60)
        order = list(range(1000))
        random.Random(5).shuffle(order)
        before, after = [before[i] for i in order], [after[i] for i in order]
        comparison = Comparison.points(0.03)
        sequential = run_sequential_test(before, after, comparison, 0.05, None)
        fixed = run_fixed_test(before, after, comparison, 0.05)

        assert sequential.verdict == fixed.verdict == "pass"
        assert sequential.lower < fixed.lower
        assert sequential.p_value > fixed.p_value


class TestPairedInterval:
    def test_counts_go_where_they_belong(self) -> None:
        assert paired_interval(*counted(7, 5, 3, 2), 0.05) == tango_interval(7, 5, 3, 2, 0.05)

    def test_whole_numbers_are_right_or_wrong_too(self) -> None:
        assert paired_interval([1, 0, 1], [1, 1, 0], 0.05) == tango_interval(1, 1, 1, 0, 0.05)

    def test_one_real_score_is_enough(self) -> None:
        interval = paired_interval([1.0, 0.0, 1.0], [1.0, 0.0, 0.5], 0.05)
        assert interval.method == GRADED
        assert interval == paired_interval([1.0, 0.0, 1.0], [1.0, 0.0, 0.5], 0.05)

    def test_the_sign_is_candidate_minus_baseline(self) -> None:
        interval = paired_interval(5 * [0.9, 0.8, 0.7, 0.95], 5 * [0.5, 0.45, 0.2, 0.5], 0.05)
        assert interval.upper < 0
        assert graded_interval(5 * [-0.4, -0.35, -0.5, -0.45], 0.05).upper < 0

    def test_unpaired_scores_are_refused(self) -> None:
        with pytest.raises(ValueError, match="zip"):
            paired_interval([1.0], [1.0, 0.0], 0.05)
