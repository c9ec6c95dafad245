"""The end of a round: decided, or at its last question, for any batches."""

from __future__ import annotations

import json
import random
from dataclasses import asdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eval_gates.statistics.comparison import Comparison
from eval_gates.statistics.sequential import sequential_test
from eval_gates.stopping import StoppingPlan, StoppingRule, comparison_of, read_stopping
from recipes.policy import Margin

POINTS, RECOVERY = Comparison.points(0.2), Comparison.recovery(0.8)
SLOW = settings(max_examples=25, deadline=None)


def paired_scores(seed: int, n: int, lost: float, gained: float) -> tuple[list[float], list[float]]:
    """Right-or-wrong answers of a baseline that knows 70 %, and of a variant."""
    draw = random.Random(seed)
    before, after = [], []
    for _ in range(n):
        right = draw.random() < 0.7
        flips = draw.random() < (lost if right else gained)
        before.append(float(right))
        after.append(float(right != flips))
    return before, after


def asked(stopping: StoppingPlan, answers: list[float]) -> int:
    """Ask a variant that would give these answers, as a worker does; how many it was asked."""
    scores: list[float] = []
    while batch := stopping.next_batch(scores):
        assert batch.start == len(scores)
        assert 1 <= len(batch) <= stopping.batch
        scores += answers[batch.start : batch.stop]
    return len(scores)


def test_margins_become_comparisons() -> None:
    assert comparison_of(Margin(points=0.2)) == POINTS
    assert comparison_of(Margin(recovery=0.8)) == RECOVERY


@pytest.mark.parametrize("margin", [POINTS, RECOVERY, Comparison.points(0.1 + 0.2)])
@pytest.mark.parametrize("population", [None, 300])
def test_a_rule_survives_the_way_to_the_worker(margin: Comparison, population: int | None) -> None:
    before, after = paired_scores(7, 120, 0.1, 0.05)
    stopping = StoppingPlan(120, 16, StoppingRule(margin, 0.05 / 3, population), before)
    arrived = read_stopping(json.loads(json.dumps(asdict(stopping))))

    assert arrived == stopping
    assert asked(arrived, after) == asked(stopping, after)
    assert arrived.state(after) == stopping.state(after)


def test_a_planned_bet_stops_sooner_and_a_rule_without_one_has_an_even_stake() -> None:
    before, after = paired_scores(3, 400, 0.04, 0.08)
    planned = StoppingRule(Comparison.points(0.08), 0.05, None, 0.85)
    even = StoppingRule(Comparison.points(0.08), 0.05)
    asks = [asked(StoppingPlan(400, 1, rule, before), after) for rule in (planned, even)]
    assert asks[0] < asks[1] < 400


def test_without_a_rule_all_is_asked() -> None:
    stopping = StoppingPlan(max_questions=100, batch=32)

    assert asked(stopping, [0.0] * 100) == 100
    assert stopping.state([0.0] * 100) == "open"


def test_nothing_answered_is_open() -> None:
    stopping = StoppingPlan(64, 16, StoppingRule(POINTS, 0.05), [1.0] * 64)

    assert stopping.state([]) == "open"
    assert stopping.next_batch([]) == range(16)


@pytest.mark.parametrize(("answer", "state"), [(1.0, "pass"), (0.0, "fail")])
@pytest.mark.parametrize("margin", [POINTS, RECOVERY])
def test_what_is_decided_stops(margin: Comparison, answer: float, state: str) -> None:
    stopping = StoppingPlan(1000, 8, StoppingRule(margin, 0.05), [1.0] * 1000)
    answers = [answer] * 1000
    count = asked(stopping, answers)

    assert count < 100
    assert stopping.state(answers[:count]) == state
    assert stopping.state(answers[: count - 8]) == "open"
    assert stopping.next_batch(answers[:count]) == range(0)


def test_what_is_open_at_the_cap_stays_open() -> None:
    stopping = StoppingPlan(20, 8, StoppingRule(POINTS, 0.001), [1.0] * 20)

    assert asked(stopping, [1.0] * 20) == 20
    assert stopping.state([1.0] * 20) == "open"
    assert stopping.next_batch([1.0] * 16) == range(16, 20)
    assert stopping.next_batch([1.0] * 25) == range(0)  # an earlier policy's round went further


def test_a_stricter_level_asks_more() -> None:
    counts = [
        asked(StoppingPlan(1000, 1, StoppingRule(POINTS, alpha), [1.0] * 1000), [1.0] * 1000)
        for alpha in (0.05, 0.05 / 4, 0.001)
    ]
    assert counts == sorted(set(counts))


def test_a_finite_benchmark_is_decided_by_its_end() -> None:
    """5 of 24 lost, with a margin of 20 points; and 4 of 24."""
    for lost, state in ((5, "fail"), (4, "pass")):
        answers = [0.0] * lost + [1.0] * (24 - lost)
        random.Random(3).shuffle(answers)
        whole = StoppingPlan(24, 5, StoppingRule(POINTS, 0.05, 24), [1.0] * 24)
        assert whole.state(answers) == state
        endless = StoppingPlan(24, 5, StoppingRule(POINTS, 0.05), [1.0] * 24)
        assert endless.state(answers) == "open"


@SLOW
@given(
    seed=st.integers(0, 10_000),
    lost=st.sampled_from([0.0, 0.05, 0.3, 0.8]),
    batches=st.lists(st.integers(1, 200), min_size=2, max_size=4),
    margin=st.sampled_from([POINTS, RECOVERY]),
    finite=st.booleans(),
)
def test_the_state_does_not_depend_on_the_batches(
    seed: int, lost: float, batches: list[int], margin: Comparison, finite: bool
) -> None:
    n = 150
    before, after = paired_scores(seed, n, lost, 0.05)
    population = 200 if finite else None
    result = sequential_test(before, after, margin, 0.05, population, bounds=False)
    for batch in batches:
        stopping = StoppingPlan(n, batch, StoppingRule(margin, 0.05, population), before)
        count = asked(stopping, after)
        assert stopping.state(after[:count]) == result.verdict
        needed = n if result.decided_at is None else result.decided_at
        assert count == min(-(-needed // batch) * batch, n)


@SLOW
@given(seed=st.integers(0, 10_000), first=st.integers(1, 149), batch=st.integers(1, 40))
def test_a_round_goes_on_where_the_last_one_ended(seed: int, first: int, batch: int) -> None:
    before, after = paired_scores(seed, 150, 0.1, 0.1)
    rule = StoppingRule(POINTS, 0.05)
    done = asked(StoppingPlan(first, batch, rule, before[:first]), after)
    second = StoppingPlan(150, batch, rule, before)
    scores = after[:done]
    while following := second.next_batch(scores):
        scores += after[following.start : following.stop]

    assert second.state(scores) == StoppingPlan(150, 150, rule, before).state(after)


def test_scores_without_the_baselines_are_refused() -> None:
    stopping = StoppingPlan(10, 5, StoppingRule(POINTS, 0.05), [1.0] * 3)
    with pytest.raises(ValueError, match=r"^3 .* 5"):
        stopping.state([1.0] * 5)
