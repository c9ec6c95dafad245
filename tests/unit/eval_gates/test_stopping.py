"""Where a suite's questions end: decided at a look, or at the last question, for any batches."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eval_gates.rows import Answer
from eval_gates.stopping import PLAN, GateRule, StoppingPlan
from recipes.policy import Margin

POINTS, RECOVERY = (
    GateRule(tier="critical", margin=each, alpha=0.05)
    for each in (Margin(points=0.2), Margin(recovery=0.8))
)
SLOW = settings(max_examples=25, deadline=None)
Rows = list[Answer]


def paired(seed: int, n: int, lost: float, gained: float) -> tuple[list[float], Rows]:
    """Right-or-wrong answers of a baseline that knows 70 %, and of a variant."""
    draw = random.Random(seed)
    before, after = [], []
    for _ in range(n):
        right = draw.random() < 0.7
        flips = draw.random() < (lost if right else gained)
        before.append(float(right))
        after.append(Answer("a", "p", float(right != flips)))
    return before, after


def asked(stopping: StoppingPlan, answers: Rows, start: int = 0) -> int:
    """Ask a variant that would give these answers, as a worker does; how many it was asked."""
    rows = answers[:start]
    while batch := stopping.next_batch(rows):
        assert batch.start == len(rows)
        assert len(batch) >= 1
        rows = rows + answers[batch.start : batch.stop]
    return len(rows)


@pytest.mark.parametrize("rule", [POINTS, RECOVERY])
@pytest.mark.parametrize("can_pass", [True, False])
def test_a_rule_survives_the_way_to_the_worker(rule: GateRule, can_pass: bool) -> None:
    before, after = paired(7, 120, 0.1, 0.05)
    stopping = StoppingPlan(120, 16, rule, before, can_pass=can_pass)
    arrived = PLAN.validate_python(json.loads(PLAN.dump_json(stopping)))
    assert arrived == stopping
    assert asked(arrived, after) == asked(stopping, after)


def test_without_a_rule_all_is_asked() -> None:
    stopping = StoppingPlan(max_questions=100, batch=32)
    rows = [Answer("a", "p", 0.0)] * 100
    assert asked(stopping, rows) == 100
    assert stopping.decided(rows) is None
    assert stopping.counted(rows * 2) == 100


def test_it_ends_at_a_look() -> None:
    before, after = paired(3, 400, 0.0, 0.0)
    stopping = StoppingPlan(400, 64, POINTS, [*before, 0.0])  # the baseline may have more
    assert stopping.look_ends() == [100, 200, 400]
    assert asked(stopping, after) == 100
    found = stopping.decided(after[:100])
    assert found is not None
    assert (found.state, found.planned) == ("pass", 400)


def test_kept_answers_beyond_the_look_are_not_counted() -> None:
    """As of an earlier run with a stricter margin."""
    before, after = paired(3, 400, 0.0, 0.0)
    stopping = StoppingPlan(400, 64, POINTS, before)
    assert stopping.next_batch(after[:250]) == range(0)
    assert stopping.counted(after[:250]) == 100


@pytest.mark.parametrize(
    ("least", "labels", "wanted"), [(130, None, 130), (50, 5, 250), (999, 5, 400)]
)
def test_a_decided_gate_is_asked_on_for_one_that_needs_more(
    least: int, labels: int | None, wanted: int
) -> None:
    before, after = paired(3, 400, 0.0, 0.0)
    clusters = [str(n // labels) for n in range(400)] if labels else None
    if clusters:
        after = [replace(row, cluster=label) for row, label in zip(after, clusters, strict=True)]
    stopping = StoppingPlan(400, 64, POINTS, before, clusters, min_values=least)
    assert wanted <= asked(stopping, after) < wanted + 65
    assert stopping.counted(after) == wanted


@pytest.mark.parametrize(
    ("until", "wanted", "state"), [(0, 500, "pass"), (500, 1_000, "pass"), (2_000, 2_000, "open")]
)
def test_a_look_at_which_a_group_is_lost_does_not_end_it(
    until: int, wanted: int, state: str
) -> None:
    """One of four groups loses two of five answers, in the first or in all questions."""
    after = [
        Answer("a", "p", float(n % 4 > 0 or n >= until or n // 4 % 5 > 1), group=f"g{n % 4}")
        for n in range(2_000)
    ]
    stopping = StoppingPlan(2_000, 64, POINTS, [1.0] * 2_000)
    assert asked(stopping, after) == wanted
    finding = stopping.decided(after[:wanted])
    assert finding is not None
    assert (finding.state, finding.is_withheld) == (state, state == "open")
    assert finding.is_inside


def test_a_look_at_which_large_clusters_are_lost_does_not_end_it() -> None:
    """A tenth of the clusters are large, and lost in the first half."""
    sizes = [30 if n % 10 == 0 else 1 for n in range(400)]
    after = [
        Answer("a", "p", float(size == 1 or cluster >= 200), cluster=str(cluster))
        for cluster, size in enumerate(sizes)
        for _ in range(size)
    ]
    stopping = StoppingPlan(
        len(after), 64, POINTS, [1.0] * len(after), [row.cluster for row in after]
    )
    finding = stopping.decided(after)
    assert finding is not None
    assert (finding.number, finding.state, finding.is_withheld) == (3, "open", True)
    assert asked(stopping, after) == len(after)


def test_clusters_are_asked_whole_and_looks_count_them() -> None:
    labels = [str(n // 5) for n in range(400)]
    stopping = StoppingPlan(398, 64, POINTS, [1.0] * 400, clusters=labels)
    assert stopping.end == 400
    assert stopping.look_ends() == [100, 200, 400]
    assert len(stopping.next_batch([])) == 65


@SLOW
@given(
    seed=st.integers(0, 99),
    n=st.integers(1, 150),
    batches=st.tuples(st.integers(1, 70), st.integers(1, 70)),
    lost=st.sampled_from([0.0, 0.1, 0.5]),
    rule=st.sampled_from([POINTS, RECOVERY]),
    start=st.integers(0, 150),
)
def test_batches_and_interruptions_change_nothing(
    seed: int, n: int, batches: tuple[int, int], lost: float, rule: GateRule, start: int
) -> None:
    before, after = paired(seed, n, lost, 0.05)
    one, other = (StoppingPlan(n, batch, rule, before) for batch in batches)
    whole = asked(one, after)
    assert whole == asked(other, after)
    assert one.counted(after[: max(whole, min(start, n))]) == whole
