"""The test of tokens per solved task: its error rate, its bounds, and what it cannot show."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eval_gates.statistics.cost import (
    PRICE_SHARE,
    CostClaim,
    Work,
    min_problems,
    run_cost_test,
)

ALPHA, CAP = 0.05, 1000.0


def work(tokens: object, solved: object, cap: float = CAP) -> Work:
    """One side's answers."""
    return Work(np.asarray(tokens, dtype=float), np.asarray(solved, dtype=float), cap)


def drawn(seed: int, n: int = 80, spread: float = 0.1) -> tuple[Work, Work]:
    """Return related answers of both sides."""
    rng = np.random.default_rng(seed)
    before = np.minimum(150 * np.exp(0.5 * rng.normal(size=n)), CAP)
    after = np.minimum(before * np.exp(spread * rng.normal(size=n)), CAP)
    right = rng.random(n) < 0.7
    return work(before, right), work(after, right ^ (rng.random(n) < 0.05))


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([0.5, 1.0, 1.3, 3.0]))
def test_a_pass_turned_around_is_a_fail(seed: int, ratio: float) -> None:
    baseline, candidate = drawn(seed, 40)
    one = run_cost_test(baseline, candidate, ratio, ALPHA)
    other = run_cost_test(candidate, baseline, 1 / ratio, ALPHA)
    turned = {"pass": "fail", "fail": "pass", "open": "open"}
    assert other.verdict == turned[one.verdict]
    assert one.ratio is not None
    assert other.ratio == pytest.approx(1 / one.ratio)
    assert one.upper == pytest.approx(1 / other.lower)
    assert one.lower <= one.ratio <= one.upper


@settings(max_examples=3, deadline=None)
@given(st.integers(0, 10_000))
def test_the_bounds_are_where_the_verdict_turns(seed: int) -> None:
    baseline, candidate = drawn(seed, 100)
    found = run_cost_test(baseline, candidate, 1.2, ALPHA)
    assert (found.verdict == "pass") == (found.p_value <= ALPHA)
    cheaper = CostClaim(baseline, candidate, ALPHA)
    assert [cheaper.holds(each * found.upper) for each in (0.995, 1.002)] == [False, True]
    dearer = CostClaim(candidate, baseline, ALPHA)
    assert [dearer.holds(each / found.lower) for each in (0.995, 1.002)] == [False, True]


def test_the_unit_of_length_does_not_matter() -> None:
    baseline, candidate = drawn(1)
    one = run_cost_test(baseline, candidate, 1.2, ALPHA)
    long = [Work(10 * each.tokens, each.solved, 10 * CAP) for each in (baseline, candidate)]
    other = run_cost_test(long[0], long[1], 1.2, ALPHA)
    assert (other.p_value, other.upper) == pytest.approx((one.p_value, one.upper), rel=1e-6)


def test_equal_answers_have_the_closed_form() -> None:
    baseline = work([100.0] * 30, [1.0] * 30)
    claim = CostClaim(baseline, baseline, ALPHA)
    price = baseline.cost_interval(PRICE_SHARE * ALPHA / 2)[1]
    expected = (1 + 50 / (CAP + 1.5 * price)) ** -30
    assert claim.p_value(1.5) == pytest.approx(PRICE_SHARE * ALPHA + expected)


def test_problems_that_a_ratio_needs() -> None:
    def passes(number: int) -> bool:
        equal = work([100.0] * number, [1.0] * number)
        return CostClaim(equal, equal, ALPHA).holds(1.5)

    some = work([100.0] * 9, [1.0] * 9)
    least = min_problems(some, CAP, 1.5, ALPHA)
    assert least is not None
    assert not passes(least - 1)
    assert passes(math.ceil(1.2 * least))  # the price is known by its interval only
    assert min_problems(some, CAP, 1.0, ALPHA) is None


@pytest.mark.parametrize(
    ("solved", "verdict"),
    [((0, 0), "open"), ((1, 0), "fail"), ((0, 1), "pass")],
)
def test_a_side_that_solves_nothing(solved: tuple[int, int], verdict: str) -> None:
    baseline, candidate = (work([100.0] * 50, [each] * 50) for each in solved)
    found = run_cost_test(baseline, candidate, 1.2, ALPHA)
    assert (found.verdict, found.ratio) == (verdict, None)
    assert (found.lower, found.upper) == (0, math.inf)


def test_one_problem_and_no_tokens() -> None:
    assert run_cost_test(work([5], [1]), work([5], [1]), 1.2, ALPHA).verdict == "open"
    nothing = work([0] * 20, [1] * 20)
    assert run_cost_test(nothing, nothing, 1.2, ALPHA).verdict == "open"


def test_fewer_solved_tasks_cost_as_longer_answers_do() -> None:
    rng = np.random.default_rng(3)
    tokens, right = 150 * np.exp(0.3 * rng.normal(size=600)), rng.random(600) < 0.8
    baseline = work(tokens, right)
    fewer = run_cost_test(baseline, work(tokens, right & (rng.random(600) < 0.75)), 1.1, ALPHA)
    longer = run_cost_test(baseline, work(tokens / 0.75, right), 1.1, ALPHA)
    assert fewer.verdict == longer.verdict == "fail"


@pytest.mark.parametrize(
    ("tokens", "solved"),
    [([1, 2], [1]), ([], []), ([math.nan], [1]), ([CAP + 1], [1]), ([-1], [1]), ([1], [2])],
)
def test_impossible_answers(tokens: list[float], solved: list[float]) -> None:
    with pytest.raises(ValueError, match=r"must|need"):
        work(tokens, solved)


@pytest.mark.parametrize("alpha", [0.0, 0.5, math.nan])
def test_impossible_levels(alpha: float) -> None:
    baseline, candidate = drawn(1, 20)
    with pytest.raises(ValueError, match="alpha"):
        run_cost_test(baseline, candidate, 1.1, alpha)


@pytest.mark.parametrize(
    ("loops", "solved", "k"),
    [(0.02, 0.95, 1), (0.1, 0.5, 4), (0.3, 0.1, 1)],
)
def test_false_passes_at_the_boundary(loops: float, solved: float, k: int) -> None:
    """A share of the variant's answers has no end; t and bootstrap err in up to 80 % of runs."""
    rng = np.random.default_rng(7)
    replays, n = 200, 60
    cost, cost_with_loops = 100 / solved, (100 + loops * (CAP - 100)) / (solved * (1 - loops))
    wrong = 0
    for _ in range(replays):
        right = rng.random((n, k)) < solved
        endless = rng.random((n, k)) < loops
        before = work([100.0] * n, right.mean(axis=1))
        after = work(np.where(endless, CAP, 100.0).mean(axis=1), (right & ~endless).mean(axis=1))
        wrong += CostClaim(before, after, ALPHA).holds(cost_with_loops / cost)
    assert wrong <= replays * (ALPHA + 2 * math.sqrt(ALPHA * (1 - ALPHA) / replays))
