"""Questions that belong together: kept whole, and one value each."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kept_answers import HUMANEVAL, judged_rows, parsed

from eval_gates.clusters import means, partners, repeated_field, whole_end
from eval_gates.rows import Answer
from eval_gates.stopping import GateRule, StoppingPlan
from recipes.policy import AnySuite, Margin

ALPHA = 0.05
SIZES = st.lists(st.integers(1, 6), min_size=1, max_size=12)


def labels(sizes: list[int]) -> list[str]:
    return [f"c{place}" for place, size in enumerate(sizes) for _ in range(size)]


@given(sizes=SIZES, batch=st.integers(1, 9), limit=st.integers(1, 80))
def test_batches_end_where_a_cluster_does(sizes: list[int], batch: int, limit: int) -> None:
    names = labels(sizes)
    stopping = StoppingPlan(min(limit, len(names)), batch, clusters=names)
    asked: list[Answer] = []
    while following := stopping.next_batch(asked):
        asked += [Answer("a", "p", 1.0)] * len(following)
        assert len(asked) == len(names) or names[len(asked)] != names[len(asked) - 1]
    assert len(asked) == whole_end(names, min(limit, len(names))) >= min(limit, len(names))


@given(sizes=SIZES)
def test_a_partner_is_of_another_cluster(sizes: list[int]) -> None:
    names = labels(sizes)
    found = partners(names)
    assert len(found) == len(names)
    if len(sizes) > 1:
        assert all(names[own] != names[other] for own, other in enumerate(found))
    pairs = [(names[own], names[other]) for own, other in enumerate(found)]
    swapped = [pair for pair in pairs if pair[::-1] not in pairs]
    assert {own for own, _ in swapped} <= ({f"c{len(sizes) - 1}"} if len(sizes) % 2 else set())


def passages(generator: np.random.Generator, number: int, drop: float) -> list[dict[str, Any]]:
    """Five questions a passage, which the variant loses all together or not at all."""
    rows = []
    for passage in range(number):
        lost = generator.random() < drop
        rows += [
            {"id": f"{passage}/{n}", "prompt_sha256": "x", "score": float(not lost)}
            | {"cluster": str(passage)}
            for n in range(5)
        ]
    return rows


def test_a_variant_at_the_margin_passes_in_5_percent() -> None:
    suite: AnySuite = HUMANEVAL.model_copy(
        update={"margins": {"fp8": Margin(points=0.1)}, "cluster_by": "passage"}
    )
    generator, trials = np.random.default_rng(2), 150
    passed = 0
    for _ in range(trials):
        after = passages(generator, 100, 0.1)
        before = [{**row, "score": 1.0} for row in after]
        report = judged_rows(before, after, suite)
        assert (report.planned, report.cluster) == (100, "passage")
        passed += report.verdict == "pass"
    assert passed / trials <= ALPHA + 2 * math.sqrt(ALPHA * (1 - ALPHA) / trials)


@pytest.mark.parametrize("margin", [Margin(points=0.1), Margin(recovery=0.9)])
def test_a_loss_in_large_clusters_alone_does_not_pass(margin: Margin) -> None:
    """By cluster 3 % are lost, of the questions 38 %."""
    suite: AnySuite = HUMANEVAL.model_copy(
        update={"margins": {"fp8": margin}, "cluster_by": "passage"}
    )
    sizes = [20 if passage % 33 == 0 else 1 for passage in range(660)]
    before, after = (
        [
            {"id": f"{passage}/{n}", "prompt_sha256": "x", "cluster": str(passage)}
            | {"score": float(size == 1 or not is_variant)}
            for passage, size in enumerate(sizes)
            for n in range(size)
        ]
        for is_variant in (False, True)
    )
    report = judged_rows(before, after, suite)
    assert report.verdict == "undecided"
    assert "each question counted once" in report.reason
    assert judged_rows(before, before, suite).verdict == "pass"


def test_the_worker_and_the_judge_see_the_same() -> None:
    rows = parsed(passages(np.random.default_rng(1), 60, 0.0))
    names = [row.cluster for row in rows]
    rule = GateRule(tier="critical", margin=Margin(points=0.1), alpha=ALPHA)
    stopping = StoppingPlan(len(rows), 10, rule, [1.0] * len(rows), names)
    alone = StoppingPlan(60, 2, rule, [1.0] * 60)
    means_alone = [Answer("a", "p", each) for each in means(rows, "score")]
    assert stopping.decided(rows) == alone.decided(means_alone)
    assert stopping.decided(rows[:100]) is alone.decided(means_alone[:20]) is None


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        (lambda n: {"passage_id": f"p{n // 3}", "question": str(n)}, "passage_id"),
        (lambda n: {"problem": n // 2, "question": str(n)}, "problem"),
        (lambda n: {"text": f"{n // 4} " * 60, "question": str(n)}, "text"),
        (lambda n: {"subject": f"s{n % 6}", "answer": n % 4, "question": str(n)}, None),
        (lambda n: {"group": f"g{n % 6}", "question": str(n)}, None),  # sorts rows, as a subject
        (lambda n: {"document": f"d{n}", "context": ""}, None),
    ],
)
def test_a_field_that_suggests_clusters(fields: Any, found: str | None) -> None:
    assert repeated_field([fields(n) for n in range(240)]) == found
    assert repeated_field([]) is None
