"""The bet under speed gates: how often it errs, on noise that it was not tuned to."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from eval_gates.speed.proportion_test import (
    STAKES,
    log_evidence,
    median_lower_bound,
    proportion_lower_bound,
)

RUNS, BLOCKS = 6_000, 20
Noise = Callable[[np.random.Generator], NDArray[np.float64]]


def drifting(chance: np.random.Generator) -> NDArray[np.float64]:
    """Two loads a block on a machine whose speed wanders, in an order drawn by chance."""
    wander = chance.normal(0, 0.01, (RUNS, 2 * BLOCKS)).cumsum(axis=1)
    loads = wander + chance.normal(0, 0.02, wander.shape)
    order = chance.choice([-1.0, 1.0], (RUNS, BLOCKS))
    return np.asarray(order * (loads[:, 1::2] - loads[:, ::2]))


def growing(chance: np.random.Generator) -> NDArray[np.float64]:
    """Noise ten times as large in the second half."""
    scale = np.where(np.arange(BLOCKS) < BLOCKS // 2, 0.01, 0.1)
    return np.asarray(chance.normal(0, 1, (RUNS, BLOCKS)) * scale)


def slowed_on_one_side(chance: np.random.Generator) -> NDArray[np.float64]:
    """Far above in 40 % of blocks, a little below in half, above in the rest: the median is 0."""
    place = chance.random((RUNS, BLOCKS))
    return np.select([place < 0.4, place < 0.9], [0.16, -0.005], 0.001)


# All have the median 0.
NOISE: dict[str, Noise] = {
    "normal": lambda c: c.normal(0, 0.03, (RUNS, BLOCKS)),
    "no variance": lambda c: c.standard_cauchy((RUNS, BLOCKS)),
    "two values": lambda c: c.choice([-1.0, 1.0], (RUNS, BLOCKS)),
    "ties": lambda c: c.choice([-1.0, 0.0, 0.0, 1.0], (RUNS, BLOCKS)),
    "drift": drifting,
    "growing": growing,
    "slowed on one side": slowed_on_one_side,
    "skewed down": lambda c: math.log(2) - c.exponential(1, (RUNS, BLOCKS)),
    "very skewed up": lambda c: c.lognormal(0, 2, (RUNS, BLOCKS)) - 1,
}


@pytest.mark.parametrize("name", NOISE)
def test_it_errs_at_most_as_often_as_it_says(name: str) -> None:
    """Looked at after each block, in either direction, at two error rates."""
    values = NOISE[name](np.random.default_rng(3))
    for happened in (values > 0, values < 0):
        evidence = log_evidence(happened, 0.5).max(axis=1)
        for alpha in (0.05, 0.01):
            wrong = float((evidence >= -math.log(alpha)).mean())
            assert wrong <= alpha, (name, alpha)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.8, 0.9])
def test_of_any_share_it_errs_as_seldom(share: float) -> None:
    """Looked at after each of 60, of which exactly that share happens."""
    happened = np.random.default_rng(6).random((RUNS, 60)) < share
    evidence = log_evidence(happened, share).max(axis=1)
    for alpha in (0.05, 0.01):
        assert (evidence >= -math.log(alpha)).mean() <= alpha


@pytest.mark.parametrize(
    ("dependence", "most", "least"), [(0.3, 0.12, 0.05), (0.6, 0.25, 0.12), (0.9, 0.45, 0.3)]
)
def test_what_depends_on_what_was_before_is_not_covered(
    dependence: float, most: float, least: float
) -> None:
    """What docs/how-to/performance-gates.md says of one side's speed wandering over many blocks."""
    noise = np.random.default_rng(9).normal(0, 1, (RUNS, BLOCKS))
    for block in range(1, BLOCKS):
        own = math.sqrt(1 - dependence**2) * noise[:, block]
        noise[:, block] = dependence * noise[:, block - 1] + own
    evidence = log_evidence(noise > 0, 0.5).max(axis=1)
    assert least <= float((evidence >= -math.log(0.05)).mean()) <= most


def test_wealth_is_one_on_average() -> None:
    """Exactly: over all ways in which six cases can go."""
    ways = np.array(np.meshgrid(*[[0, 1]] * 6)).reshape(6, -1).T
    for share in (0.2, 0.5, 0.9):
        chances = share ** ways.sum(axis=1) * (1 - share) ** (6 - ways.sum(axis=1))
        assert (chances * np.exp(log_evidence(ways, share)[:, -1])).sum() == pytest.approx(1.0)


def test_all_is_staked_once() -> None:
    assert sum(STAKES.values()) == pytest.approx(1.0)
    assert all(0 < bet < 1 for bet in STAKES)


def test_how_soon_what_always_happens_is_believed() -> None:
    """And no sooner: docs/explanation/performance-statistics.md has the least numbers."""
    needed = {
        (share, alpha): int((log_evidence(np.ones(60), share) >= -math.log(alpha)).argmax() + 1)
        for share, alpha in (
            *((0.5, 0.05), (0.5, 0.045), (0.5, 0.0225), (0.5, 0.009)),
            *((0.8, 0.05), (0.9, 0.05)),
        )
    }
    # 0.045 is the share of a first trial of 0.05, and half of that is where lives have the rest.
    assert needed == {
        (0.5, 0.05): 5, (0.5, 0.045): 5, (0.5, 0.0225): 7, (0.5, 0.009): 8,
        (0.8, 0.05): 16, (0.9, 0.05): 33,
    }  # fmt: skip


CASES = st.lists(st.booleans(), min_size=1, max_size=40)
VALUES = st.lists(st.integers(-5, 5).map(float), min_size=1, max_size=30)
ALPHAS = st.sampled_from([0.01, 0.05, 0.2])


@given(CASES, ALPHAS)
def test_a_surer_share_is_smaller_and_below_what_was_seen(cases: list[bool], alpha: float) -> None:
    happened = np.array(cases)
    sure = proportion_lower_bound(happened, alpha)
    assert 0 <= proportion_lower_bound(happened, alpha / 2) <= sure + 1e-6
    shares = np.cumsum(happened) / np.arange(1, happened.size + 1)
    assert sure <= shares.max()


@given(VALUES, ALPHAS)
def test_the_sure_value_is_where_the_bet_stops_winning(values: list[float], alpha: float) -> None:
    """All below it are rejected, and it is not; so a claim passes where it is above the claim."""
    found = np.array(values)
    sure = median_lower_bound(found, alpha)
    for value in np.arange(-6.25, 6, 0.5):
        rejected = log_evidence(found > value, 0.5).max() >= -math.log(alpha)
        assert rejected == (value < sure)


@given(VALUES, ALPHAS)
def test_order_is_all_that_matters(values: list[float], alpha: float) -> None:
    """Not sizes: units, and outliers as large as one likes."""
    found = np.array(values)
    stretched = np.exp(3 * found) + 7
    assert np.exp(3 * median_lower_bound(found, alpha)) + 7 == pytest.approx(
        max(7.0, median_lower_bound(stretched, alpha))
    )


def test_bounds_hold_after_every_value_at_once() -> None:
    """The true median is below the lower bound, after whichever value, in at most alpha of runs."""
    chance = np.random.default_rng(5)
    runs, alpha, missed = 400, 0.2, 0
    for _ in range(runs):
        values = chance.standard_t(3, 12) + 7.0
        missed += any(median_lower_bound(values[:n], alpha) > 7.0 for n in (4, 6, 9, 12))
    assert missed / runs <= alpha


def test_nothing_and_too_few_say_nothing() -> None:
    assert median_lower_bound(np.empty(0), 0.05) == -math.inf
    assert median_lower_bound(np.ones(4), 0.05) == -math.inf
    assert median_lower_bound(np.ones(5), 0.05) == 1
    assert proportion_lower_bound(np.zeros(20, dtype=bool), 0.05) == pytest.approx(0, abs=1e-6)
