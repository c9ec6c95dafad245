"""From kept answers to a report: pairing, its numbers, the floor, groups of subjects."""

from __future__ import annotations

import math
from typing import Any

import pytest
from kept_answers import (
    HUMANEVAL,
    MMLU,
    Rows,
    answers,
    flipped,
    judged,
    judged_rows,
    parsed,
    recovery,
)

from eval_gates.quality_gate import nats_lost
from eval_gates.quality_result import AnswerLengths, NoiseFloor
from eval_gates.rows import COUNTS


class TestPairing:
    def refused(self, baseline: Rows, candidate: Rows, again: Rows | None = None) -> str:
        with pytest.raises(ValueError, match=r"question|suite") as caught:
            judged_rows(baseline, candidate, again=again or [])
        return str(caught.value)

    @pytest.mark.parametrize("key", ["id", "prompt_sha256"])
    def test_other_question_or_prompt(self, key: str) -> None:
        candidate = answers([1.0, 1.0])
        candidate[1][key] = "other"
        message = self.refused(answers([1.0, 1.0]), candidate)
        assert f"'{key}' differs for question philosophy/1" in message
        again = self.refused(answers([1.0] * 3), answers([1.0] * 3), candidate)
        assert again == f"suite, asked again: '{key}' differs for question philosophy/1"

    def test_other_order_or_number(self) -> None:
        assert "'id' differs" in self.refused(answers([1.0, 0.5]), answers([1.0, 0.5])[::-1])
        assert "1 answers against 2" in self.refused(answers([1.0]), answers([1.0, 1.0]))

    @pytest.mark.parametrize("score", [None, math.nan, math.inf, -0.1, 1.1, "1.0"])
    @pytest.mark.parametrize("on_baseline", [True, False])
    def test_score_missing_or_out_of_range(self, score: Any, on_baseline: bool) -> None:
        sides = [answers([1.0, score]), answers([1.0, 1.0])]
        message = self.refused(*(sides if on_baseline else sides[::-1]))
        assert f"question philosophy/1 has the score {score!r}" in message


class TestPrefix:
    """The baseline has answered the whole list; a variant took what it needed."""

    def test_another_prompt_beyond_it_does_not_matter(self) -> None:
        baseline = answers([1.0] * 100)
        baseline[70]["prompt_sha256"] = "other"
        report = judged_rows(baseline, answers([1.0] * 50), HUMANEVAL, family="int4")
        assert (report.n, report.verdict) == (25, "pass")

    def test_whether_the_baseline_guesses_is_seen_by_all_its_answers(self) -> None:
        """However early the variant's gate was decided."""
        before = [1.0, 0.0] * 300
        early = judged(before, before[:150], MMLU, family="fp8")
        assert (early.n, early.verdict) == (150, "pass")
        guessing = before[:150] + [0.0] * 450
        assert "insensitive" in judged(guessing, guessing, MMLU, family="fp8").reason


class TestNumbers:
    def test_means_and_difference(self) -> None:
        report = judged([1.0, 1.0, 0.0, 0.5], [0.5, 1.0, 0.0, 0.75])
        assert (report.n, report.planned) == (4, 4)
        assert (report.baseline, report.candidate) == (0.625, 0.5625)
        assert report.estimate == -0.0625
        assert (report.flips, report.gains) == (2, 1)
        assert report.bound <= -0.0625 <= report.upper_bound
        assert (report.lower, report.upper) == (report.bound, report.upper_bound)

    @pytest.mark.parametrize(
        ("after", "words"),
        [((1.0, 0.0), "1 of 2, the baseline 2; "), ((1.0, 1.0), "2 of 2 on both sides; ")],
    )
    def test_whole_scores_are_counted(self, after: tuple[float, ...], words: str) -> None:
        assert judged([1.0, 1.0], after).reason.startswith(words)

    def test_a_margin_as_recovery(self) -> None:
        report = judged(*flipped(400, 4, 4, 200), recovery(HUMANEVAL))
        assert report.verdict == "pass"
        assert report.margin == "90 % recovery"
        assert report.threshold == 0.0 < report.bound
        mean = report.candidate - 0.9 * report.baseline
        assert report.bound < mean < report.upper_bound
        assert report.lower < report.estimate < report.upper
        assert report.kept == pytest.approx(report.candidate / report.baseline)
        assert report.allowed == pytest.approx(-0.1 * report.baseline)
        assert "more than 90 % of the baseline is kept" in report.reason


class TestFloor:
    def test_how_often_the_baseline_flips(self) -> None:
        before = [1.0, 0.0, 0.5, 1.0, 1.0]
        again = answers([1.0, 1.0, 0.25, 1.0])
        report = judged_rows(answers(before), answers(before), again=again)
        assert report.noise_floor == NoiseFloor(n=4, flips=2)

    def test_a_variant_that_stopped_early_takes_nothing_from_it(self) -> None:
        before = [1.0] * 100
        again = answers([1.0] * 49 + [0.0])
        report = judged_rows(
            answers(before), answers(before[:25]), HUMANEVAL, family="int4", again=again
        )
        assert (report.n, report.noise_floor) == (25, NoiseFloor(n=50, flips=1))


class TestGroups:
    BEFORE = (1.0, 0.0, 1.0, 1.0, 1.0, 1.0)  # anatomy, philosophy, virology, sociology, anatomy...
    AFTER = (0.0, 0.0, 1.0, 1.0, 1.0, 0.0)

    def test_by_group_then_by_subject(self) -> None:
        report = judged(self.BEFORE, self.AFTER, MMLU)
        assert [(g.group, g.kind, g.n, g.flips) for g in report.groups] == [
            ("STEM", "union", 2, 1),
            ("humanities", "union", 2, 1),
            ("social sciences", "union", 1, 0),
            ("other", "union", 1, 0),
            ("anatomy", "part", 2, 1),
            ("philosophy", "part", 2, 1),
            ("sociology", "part", 1, 0),
            ("virology", "part", 1, 0),
        ]
        anatomy = report.groups[4]
        assert (anatomy.baseline, anatomy.candidate) == (1.0, 0.5)
        philosophy = report.groups[5]
        assert (philosophy.baseline, philosophy.candidate) == (0.5, 0.0)

    def test_a_subject_of_the_users_own(self) -> None:
        rows = answers([1.0, 1.0])
        rows[0]["group"] = "plumbing"
        names = [g.group for g in judged_rows(rows, rows, MMLU).groups]
        assert names == ["humanities", "not in MMLU", "philosophy", "plumbing"]


class TestLengths:
    @staticmethod
    def lengths(tokens: Any, **unfinished: Any) -> Rows:
        fields = {"tokens": tokens, **dict.fromkeys(COUNTS, 0), **unfinished}
        return [{**row, **fields} for row in answers([1.0, 0.5])]

    def test_every_answer_counts(self) -> None:
        long = self.lengths([30, 50], truncated=1)
        report = judged_rows(self.lengths([10]), long)
        assert report.baseline_lengths == AnswerLengths(tokens=10, truncated=0, unclosed=0)
        assert report.candidate_lengths == AnswerLengths(tokens=40, truncated=0.5, unclosed=0)

    @pytest.mark.parametrize("tokens", [None, [], [-1], [True], ["7"], [1e9], [2**40], 7])
    def test_impossible_tokens(self, tokens: Any) -> None:
        with pytest.raises(ValueError, match=r"/0 has (no|the) tokens"):
            judged_rows(self.lengths([1]), self.lengths(tokens))

    @pytest.mark.parametrize("count", [None, -1, 2, "0", 0.5])
    def test_impossible_counts(self, count: Any) -> None:
        with pytest.raises(ValueError, match=r"/0 (has the unclosed|counts)"):
            judged_rows(self.lengths([1]), self.lengths([1], unclosed=count))


def test_nats_lost_are_shown_with_their_error() -> None:
    before = [{**row, "nats": 0.1} for row in answers([1.0, 1.0, 0.98, 1.0])]
    after = [
        {**row, "nats": 0.1 + lost}
        for row, lost in zip(before, (0.02, 0.03, 0.04, 0.03), strict=True)
    ]
    found = nats_lost(parsed(before), parsed(after))
    assert found is not None
    assert found.mean == pytest.approx(0.03)
    assert found.error == pytest.approx(0.00816 / 2, abs=1e-5)
    assert found.shares == [0] * 9 + [4]
    assert nats_lost(parsed(before), parsed(answers([1.0] * 4))) is None
