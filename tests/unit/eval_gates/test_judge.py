"""From kept answers to verdicts: pairing, which statistic, margins, and what never passes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eval_gates.judge import judge_suite, overall
from eval_gates.records import GateReport, ThroughputReport, Verdict
from eval_gates.statistics.paired import BCA, IDENTICAL, TANGO
from eval_gates.throughput import judge_throughput
from recipes.schema import AnySuite, Family, HumanEvalSuite, MmluSuite, RougeSuite

MARGINS: dict[Family, float] = {"fp8": 0.05, "int4": 0.25}
MMLU = MmluSuite(margins=MARGINS)
HUMANEVAL = HumanEvalSuite(margins=MARGINS)
ROUGE = RougeSuite(margins=MARGINS)


def answers(scores: Sequence[Any]) -> list[dict[str, Any]]:
    return [
        {"id": f"q/{n}", "prompt_sha256": f"digest {n}", "score": score}
        for n, score in enumerate(scores)
    ]


def judged(
    before: Sequence[float],
    after: Sequence[float],
    suite: AnySuite = ROUGE,
    family: Family = "fp8",
    alpha: float = 0.05,
) -> GateReport:
    return judge_suite(
        "suite",
        suite,
        baseline=answers(before),
        candidate=answers(after),
        family=family,
        alpha=alpha,
    )


class TestPairing:
    def refused(self, baseline: list[dict[str, Any]], candidate: list[dict[str, Any]]) -> str:
        with pytest.raises(ValueError, match="suite: ") as caught:
            judge_suite(
                "suite", ROUGE, baseline=baseline, candidate=candidate, family="fp8", alpha=0.05
            )
        return str(caught.value)

    def test_other_question(self) -> None:
        candidate = answers([1.0, 1.0])
        candidate[1]["id"] = "q/7"
        assert "'id' differs for question q/1" in self.refused(answers([1.0, 1.0]), candidate)

    def test_other_prompt(self) -> None:
        candidate = answers([1.0, 1.0])
        candidate[1]["prompt_sha256"] = "other"
        message = self.refused(answers([1.0, 1.0]), candidate)
        assert "'prompt_sha256' differs for question q/1" in message

    def test_other_order(self) -> None:
        candidate = answers([1.0, 0.5])[::-1]
        assert "'id' differs" in self.refused(answers([1.0, 0.5]), candidate)

    def test_one_answer_missing(self) -> None:
        message = self.refused(answers([1.0, 1.0]), answers([1.0]))
        assert "2 answers against 1" in message

    def test_no_answers(self) -> None:
        assert "0 answers against 0" in self.refused([], [])

    @pytest.mark.parametrize("score", [None, math.nan, math.inf, -0.1, 1.1, "1.0"])
    @pytest.mark.parametrize("on_baseline", [True, False])
    def test_score_missing_or_out_of_range(self, score: Any, on_baseline: bool) -> None:
        sides = [answers([1.0, score]), answers([1.0, 1.0])]
        message = self.refused(*(sides if on_baseline else sides[::-1]))
        assert f"question q/1 has the score {score}" in message

    def test_no_score_at_all(self) -> None:
        candidate = answers([1.0, 1.0])
        del candidate[0]["score"]
        assert "question q/0" in self.refused(answers([1.0, 1.0]), candidate)


class TestStatistic:
    def test_right_or_wrong_goes_to_tango(self) -> None:
        report = judged([1.0, 0.0, 1.0, 1.0] * 20, [1.0, 0.0, 1.0, 0.0] + [1.0, 0.0, 1.0, 1.0] * 19)
        assert report.method == TANGO
        assert report.flips == 1

    def test_whole_numbers_are_right_or_wrong_too(self) -> None:
        assert judged([1, 0, 1, 1], [1, 1, 1, 0]).method == TANGO

    def test_real_scores_go_to_the_bootstrap(self) -> None:
        report = judged([0.5, 0.25, 0.75, 1.0], [0.5, 0.5, 0.5, 1.0])
        assert report.method == BCA
        assert report.flips == 2

    def test_one_real_score_is_enough(self) -> None:
        assert judged([1.0, 0.0, 1.0], [1.0, 0.0, 0.5]).method == BCA

    def test_equal_real_scores(self) -> None:
        assert judged([0.5, 0.25], [0.5, 0.25]).method == IDENTICAL

    def test_means_and_difference(self) -> None:
        report = judged([1.0, 1.0, 0.0, 0.5], [0.5, 1.0, 0.0, 0.5])
        assert (report.n, report.baseline, report.candidate) == (4, 0.625, 0.5)
        assert report.difference == -0.125
        assert report.bound <= -0.125 <= report.upper_bound

    @pytest.mark.parametrize(
        ("suite", "metric"),
        [
            (MMLU, "acc"),
            (MmluSuite(margins=MARGINS, form="cloze"), "acc_norm"),
            (HUMANEVAL, "pass@1"),
            (RougeSuite(margins=MARGINS, metric="rouge2"), "rouge2"),
        ],
    )
    def test_metric(self, suite: AnySuite, metric: str) -> None:
        assert judged([1.0, 1.0], [1.0, 1.0], suite).metric == metric


class TestVerdict:
    def test_margin_by_family(self) -> None:
        """The same answers: too many lost for FP8's 5 points, few enough for INT4's 25."""
        before, after = [1.0] * 100, [1.0] * 86 + [0.0] * 14
        strict, wide = (judged(before, after, HUMANEVAL, family) for family in ("fp8", "int4"))
        assert (strict.margin, strict.verdict) == (0.05, "fail")
        assert (wide.margin, wide.verdict) == (0.25, "pass")
        assert strict.bound == wide.bound

    def test_undecided_between(self) -> None:
        report = judged([1.0] * 20, [1.0] * 19 + [0.0], HUMANEVAL)
        assert report.verdict == "undecided"
        assert "more questions" in report.reason

    def test_alpha_widens_the_bound(self) -> None:
        before, after = [1.0] * 50, [1.0] * 49 + [0.0]
        assert judged(before, after, alpha=0.01).bound < judged(before, after, alpha=0.1).bound

    @pytest.mark.parametrize("suite", [HUMANEVAL, ROUGE])
    def test_blind_when_the_baseline_knows_nothing(self, suite: AnySuite) -> None:
        report = judged([0.0] * 500, [0.0] * 500, suite)
        assert report.verdict == "undecided"
        assert "blind" in report.reason

    @pytest.mark.parametrize(("right", "verdict"), [(25, "undecided"), (26, "pass")])
    def test_blind_mmlu_at_guessing(self, right: int, verdict: str) -> None:
        scores = [1.0] * right + [0.0] * (100 - right)
        report = judged(scores, scores, MMLU)
        assert report.verdict == verdict
        assert ("blind" in report.reason) is (verdict == "undecided")

    def test_too_good_is_suspicious(self) -> None:
        report = judged([1.0] * 50 + [0.0] * 50, [1.0] * 90 + [0.0] * 10, HUMANEVAL)
        assert report.suspicious
        assert "suspicious" in report.reason


SCORES = st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0, 1))
BINARY = st.sampled_from([0.0, 1.0])


def pairs(score: st.SearchStrategy[float]) -> st.SearchStrategy[list[tuple[float, float]]]:
    return st.lists(st.tuples(score, score), min_size=1, max_size=40)


@settings(max_examples=40, deadline=None)
@given(
    scores=st.one_of(pairs(BINARY), pairs(SCORES)),
    suite=st.sampled_from([MMLU, HUMANEVAL, ROUGE]),
    family=st.sampled_from(["fp8", "int4"]),
    alpha=st.sampled_from([0.01, 0.05, 0.2]),
)
def test_laws(
    scores: list[tuple[float, float]], suite: AnySuite, family: Family, alpha: float
) -> None:
    before, after = [a for a, _ in scores], [b for _, b in scores]
    report = judged(before, after, suite, family, alpha)
    if report.bound <= -report.margin:
        assert report.verdict != "pass"
    if report.upper_bound >= -report.margin:
        assert report.verdict != "fail"
    if report.verdict == "pass":
        assert report.bound > -suite.margins[family]
    assert judged(before, after, suite, family, alpha) == report


@settings(max_examples=30, deadline=None)
@given(lost=st.integers(0, 60), more=st.integers(0, 20))
def test_losing_more_is_never_judged_better(lost: int, more: int) -> None:
    order = ["fail", "undecided", "pass"]
    verdicts = [
        judged([1.0] * 80, [0.0] * count + [1.0] * (80 - count), HUMANEVAL, "int4").verdict
        for count in (lost, lost + more)
    ]
    assert order.index(verdicts[1]) <= order.index(verdicts[0])


def gate(suite: str, verdict: Verdict) -> GateReport:
    return judged([1.0], [1.0]).model_copy(update={"suite": suite, "verdict": verdict})


def throughput(verdict: str) -> ThroughputReport:
    rates = {"output_tokens_per_s": 1.0, "failed_requests": 0, "requests": 1}
    latencies = {f"{name}_ms_p50": 1.0 for name in ("ttft", "tpot", "itl")}
    side = {**rates, **latencies}
    return judge_throughput(
        side,
        side,
        minimum_ratio=0.5 if verdict == "pass" else 2.0,
        maximum_failed_requests=0,
        note=None,
    )


class TestOverall:
    @pytest.mark.parametrize(
        ("mmlu", "rouge", "speed", "verdict", "words"),
        [
            ("pass", "pass", "pass", "pass", "all 3 gates passed"),
            ("pass", "undecided", "pass", "undecided", "rouge could not be decided"),
            ("fail", "undecided", "pass", "fail", "mmlu failed"),
            ("undecided", "fail", "pass", "fail", "rouge failed"),
            ("undecided", "undecided", "fail", "fail", "throughput failed"),
            ("fail", "fail", "fail", "fail", "mmlu, rouge, throughput failed"),
            ("pass", "pass", "fail", "fail", "throughput failed"),
        ],
    )
    def test_fail_beats_undecided_beats_pass(
        self, mmlu: Verdict, rouge: Verdict, speed: str, verdict: Verdict, words: str
    ) -> None:
        gates = [gate("mmlu", mmlu), gate("rouge", rouge)]
        assert overall(gates, throughput(speed)) == (verdict, words)
