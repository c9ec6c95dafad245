"""Undecided gates: what they tell of how many more questions would decide."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_findings import ALPHA, POINTS, RECOVERY, binary, finding, judged, scores, scores_of

from eval_gates.statistics.comparison import Comparison
from eval_gates.statistics.decision import Decision, Scores, decide
from eval_gates.statistics.result import run_sequential_test


class TestHowManyMore:
    def needed(self, decision: Decision) -> int:
        found = re.search(r"in all about (\d+) if", decision.reason)
        assert found, decision.reason
        return int(found[1])

    @pytest.mark.parametrize("comparison", [POINTS, Comparison.recovery(0.975)])
    @pytest.mark.parametrize("test", ["sequential", "fixed"])
    def test_about_so_many_decide(self, comparison: Comparison, test: str) -> None:
        """With twice the number that is told, and the same shares, the gate passes."""
        before, after = binary(300, 5, 4, 225)
        decision = judged(before, after, comparison, test)
        needed = self.needed(decision)

        assert decision.verdict == "undecided"
        assert "if the difference of -0.33 points stays" in decision.reason
        assert 300 < needed < 3000
        times = math.ceil(2 * needed / 300)
        more = binary(300 * times, 5 * times, 4 * times, 225 * times)
        assert judged(*more, comparison, test).verdict == "pass"
        assert judged(before, after, comparison, test) == decision

    def test_one_look_needs_fewer(self) -> None:
        answers = binary(300, 5, 4, 225)
        fixed = judged(*answers, Comparison.points(0.02), "fixed")
        sequential = judged(*answers, Comparison.points(0.02))
        assert self.needed(fixed) < self.needed(sequential)

    def test_no_more_than_the_benchmark_has(self) -> None:
        before, after = binary(300, 8, 4, 225)
        alone = run_sequential_test(before, after, POINTS, ALPHA, 400)
        endless = run_sequential_test(before, after, POINTS, ALPHA, None)

        assert self.needed(decide(endless, scores_of(before, after))) > 400
        assert self.needed(decide(alone, scores_of(before, after), 400)) == 400

    def test_so_close_to_the_margin_that_nothing_decides(self) -> None:
        decision = decide(finding("open"), scores(0.6, 0.5801, flips=0.1, flip_size=1.0))
        assert "no benchmark has enough questions if the difference of -1.99" in decision.reason
        assert "in all about" not in decision.reason

    def test_a_drop_beyond_the_margin_is_given_no_number(self) -> None:
        decision = decide(finding("open"), scores(0.6, 0.57, flips=0.1, flip_size=1.0))
        assert decision.reason.endswith("more questions would probably fail it")

    @given(
        st.floats(0.05, 1),
        st.floats(-0.4, 0.4),
        st.floats(0, 1),
        st.floats(0, 1),
        st.sampled_from([Comparison.points(0.01), POINTS, RECOVERY, Comparison.recovery(0.5)]),
    )
    def test_words_for_everything_open(
        self, baseline: float, change: float, flips: float, size: float, comparison: Comparison
    ) -> None:
        candidate = min(max(baseline + change, 0.0), 1.0)
        found = finding("open", comparison=comparison)
        decision = decide(found, Scores(baseline, candidate, flips, size))

        assert decision.verdict == "undecided"
        assert "needs" in decision.reason or "probably fail" in decision.reason
        assert not re.search(r"\bnan\b|\binf\b|e[+-]\d", decision.reason)


class TestTooFew:
    def told(self, decision: Decision) -> int:
        found = re.search(
            r"; (\d+ questions?) cannot pass even if no answer changes, (\d+) could",
            decision.reason,
        )
        assert found, decision.reason
        return int(found[2])

    @pytest.mark.parametrize("test", ["sequential", "fixed"])
    @pytest.mark.parametrize("margin", [0.01, 0.05, 0.2])
    def test_the_number_told_is_the_smallest_that_passes(self, test: str, margin: float) -> None:
        comparison = Comparison.points(margin)
        least = self.told(judged([1.0] * 3, [1.0] * 3, comparison, test))

        assert judged([1.0] * least, [1.0] * least, comparison, test).verdict == "pass"
        almost = judged([1.0] * (least - 1), [1.0] * (least - 1), comparison, test)
        assert almost.verdict == "undecided"
        assert self.told(almost) == least

    def test_humaneval_cannot_show_one_point(self) -> None:
        answers = binary(164, 0, 0, 40)
        for test in ("sequential", "fixed"):
            decision = judged(*answers, Comparison.points(0.01), test)
            assert decision.verdict == "undecided"
            assert decision.reason.count("164 questions cannot pass even if no answer") == 1

    @pytest.mark.parametrize("right", [0.3, 0.6, 0.9])
    def test_a_recovery_takes_more_where_the_baseline_knows_less(self, right: float) -> None:
        """Wrong before and after shows nothing of what was kept."""
        comparison = Comparison.recovery(0.95)

        def unchanged(n: int) -> Decision:
            before, after = binary(n, 0, 0, round(right * n))
            return judged(before, after, comparison)

        least = self.told(unchanged(20))
        assert unchanged(math.floor(0.8 * least)).verdict == "undecided"
        assert unchanged(math.ceil(1.2 * least)).verdict == "pass"

    def test_of_a_finite_benchmark_fewer_suffice(self) -> None:
        """All 80 answered decide a margin that takes more of an endless population."""
        answers = [1.0] * 20
        found = run_sequential_test(answers, answers, POINTS, ALPHA, 80)
        endless = run_sequential_test(answers, answers, POINTS, ALPHA, None)
        least = self.told(decide(found, scores_of(answers, answers), 80))

        assert least <= 80 < self.told(decide(endless, scores_of(answers, answers)))
        enough = run_sequential_test([1.0] * least, [1.0] * least, POINTS, ALPHA, 80)
        assert enough.verdict == "pass"

    def test_equal_summaries_on_few_documents(self) -> None:
        rouge = [0.31, 0.22, 0.48] * 8
        decision = judged(rouge, rouge, Comparison.points(0.08), "fixed")

        assert decision.verdict == "undecided"
        assert "24 questions cannot pass even if no answer changes, 36 could" in decision.reason
