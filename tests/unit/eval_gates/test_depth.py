"""Scores by depth, and a gate beyond a depth: another answer than the mean over all gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from eval_gates.depth import DepthResult, DepthSuite, judge_depth, report_depths
from eval_gates.rows import Answer
from eval_gates.stopping import GateRule
from eval_gates.suites.fidelity import Fidelity
from eval_gates.suites.needles import NeedlesKind
from recipes.policy import Margin

CONVERSATIONS = Fidelity()
NEEDLES = NeedlesKind()
POINTS = {"fp8": Margin(points=0.1)}


def answered(
    scores: Sequence[float], depths: Sequence[int | None], clusters: Sequence[str] = ()
) -> list[Answer]:
    return [
        Answer(
            id=str(number),
            prompt_sha256="p",
            score=score,
            nats=1.0 - score,
            cluster=clusters[number] if clusters else "",
            own={} if depth is None else {"context": depth},
        )
        for number, (score, depth) in enumerate(zip(scores, depths, strict=True))
    ]


def judged(
    before: Sequence[float],
    after: Sequence[float],
    depths: Sequence[int | None],
    at_depth: int = 4096,
    margin: Margin | None = None,
    **more: Any,
) -> DepthResult:
    suite = Fidelity.policy(margins=POINTS, at_depth=at_depth)
    assert isinstance(suite, DepthSuite)
    return judge_depth(
        "traffic",
        suite,
        GateRule(tier="critical", margin=margin or Margin(points=0.1), alpha=0.05),
        baseline=answered(before, depths, **more),
        candidate=answered(after, depths, **more),
        guessing=0.0,
        depth_of=CONVERSATIONS.depth,
    )


SHALLOW = [100] * 300
DEEP = [5000] * 60


class TestGate:
    def test_a_loss_in_deep_contexts_alone_fails_there(self) -> None:
        """Over all questions the loss is 5 points, half of the margin."""
        found = judged([1.0] * 360, [1.0] * 300 + [0.7] * 60, [*SHALLOW, *DEEP])
        assert (found.verdict, found.n, found.blocks) == ("fail", 60, True)
        assert found.estimate == pytest.approx(-0.3)
        assert found.upper is not None
        assert found.upper < -0.1

    def test_no_loss_passes(self) -> None:
        found = judged([1.0] * 360, [0.5] * 300 + [1.0] * 60, [*SHALLOW, *DEEP])
        assert (found.verdict, found.n) == ("pass", 60)

    def test_few_deep_questions_decide_nothing(self) -> None:
        found = judged([1.0] * 310, [1.0] * 310, [*SHALLOW, *DEEP[:10]])
        assert (found.verdict, found.n, found.blocks) == ("undecided", 10, True)

    def test_none_is_undecided_and_says_why(self) -> None:
        found = judged([1.0] * 300, [1.0] * 300, SHALLOW)
        assert (found.verdict, found.estimate) == ("undecided", None)
        assert "4,096" in found.reason

    def test_exactly_at_the_depth_does_not_count(self) -> None:
        assert judged([1.0] * 60, [1.0] * 60, [4096] * 60).n == 0
        assert judged([1.0] * 60, [1.0] * 60, [4097] * 60).n == 60

    def test_a_baseline_that_knows_nothing_there_passes_none(self) -> None:
        found = judged([1.0] * 300 + [0.0] * 60, [1.0] * 300 + [0.0] * 60, [*SHALLOW, *DEEP])
        assert found.verdict == "undecided"
        assert found.p_value == 1.0

    def test_clusters_count_once(self) -> None:
        clusters = [f"c{number // 6}" for number in range(60)]
        found = judged([1.0] * 60, [1.0] * 60, DEEP, clusters=clusters)
        assert (found.verdict, found.n) == ("undecided", 10)

    def test_a_loss_in_large_clusters_alone_does_not_pass(self) -> None:
        clusters = [f"c{min(number, 198)}" for number in range(240)]
        found = judged([1.0] * 240, [1.0] * 198 + [0.0] * 42, [5000] * 240, clusters=clusters)
        assert found.bound is not None
        assert found.bound > -0.1
        assert found.verdict == "undecided"

    def test_a_recovery(self) -> None:
        margin = Margin(recovery=0.9)
        assert judged([0.9] * 60, [0.7] * 60, DEEP, margin=margin).verdict == "fail"
        found = judged([0.9] * 60, [0.9] * 60, DEEP, margin=margin)
        assert (found.verdict, found.kept) == ("pass", pytest.approx(1.0))

    def test_answers_that_are_missing_are_refused(self) -> None:
        suite = Fidelity.policy(margins=POINTS, at_depth=10)
        assert isinstance(suite, DepthSuite)
        rule = GateRule(tier="critical", margin=Margin(points=0.1), alpha=0.05)
        rows = answered([1.0] * 4, [20] * 4)
        with pytest.raises(ValueError, match="2 answers are missing"):
            judge_depth(
                *("traffic", suite, rule),
                baseline=rows,
                candidate=rows[:2],
                guessing=0.0,
                depth_of=CONVERSATIONS.depth,
            )

    def test_an_answer_without_a_depth_is_refused(self) -> None:
        with pytest.raises(ValueError, match="no depth"):
            judged([1.0], [1.0], [None])


class TestTable:
    def test_rows_by_tokens(self) -> None:
        depths = [1024, 1025, 4096, 70_000]
        before = answered([1.0] * 4, depths)
        after = answered([1.0, 0.5, 0.7, 0.0], depths)
        rows = report_depths(before, after, CONVERSATIONS.depth)
        assert [(row.words, row.n) for row in rows] == [
            ("to 1,024", 1),
            ("to 4,096", 2),
            ("over 65,536", 1),
        ]
        assert [row.candidate for row in rows] == pytest.approx([1.0, 0.6, 0.0])
        assert [row.nats for row in rows] == pytest.approx([0.0, 0.4, 1.0])

    def test_none_without_a_depth(self) -> None:
        rows = answered([1.0, 1.0], [10, None])
        assert report_depths(rows, rows, CONVERSATIONS.depth) == []


@pytest.mark.parametrize(("id_", "depth"), [("4096/single/3", 4096), ("other", None)])
def test_needles_by_their_length(id_: str, depth: int | None) -> None:
    assert NEEDLES.depth(Answer(id=id_, prompt_sha256="p", score=1.0)) == depth
