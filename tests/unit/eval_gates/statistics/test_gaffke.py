"""Gaffke's bound: against exact tails, and against the definition with many random weights."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta, binom

from eval_gates.statistics import bound
from eval_gates.statistics.bound import log_chance_below, lower_bound, mean_bounds, p_value

LEVELS = (0.499, 0.1, 0.01, 1e-4, 1e-6, 1e-9)


@pytest.mark.parametrize("questions", [2, 3, 10, 164, 14_042])
@pytest.mark.parametrize("alpha", LEVELS)
def test_right_or_wrong_it_is_clopper_and_pearsons(questions: int, alpha: float) -> None:
    for lost in {0, 1, questions // 10, questions // 2} - {questions}:
        points, shapes = np.array([-1.0, 0.0]), np.array([lost + 1.0, questions - lost])
        drop = float(beta.isf(alpha, lost + 1, questions - lost))
        assert log_chance_below(points, shapes, -drop) == pytest.approx(math.log(alpha), abs=1e-6)


@pytest.mark.parametrize(
    ("questions", "margin", "alpha"),
    [
        *((30, 0.5, 1e-9), (60, 0.5, 1e-6), (40, 0.5, 1e-5), (100, 0.3, 1e-4)),
        *((164, 0.1, 1e-3), (164, 0.1, 2.5e-3), (164, 0.05, 0.045)),
    ],
)
def test_a_loss_of_the_margin_passes_with_chance_alpha(
    questions: int, margin: float, alpha: float
) -> None:
    """Computed from the binomial distribution."""
    passed = 0.0
    for lost in range(questions + 1):
        values = [-1.0] * lost + [0.0] * (questions - lost)
        if mean_bounds(values, alpha).lower <= -margin:
            break
        passed += float(binom.pmf(lost, questions, margin))
    assert passed <= alpha


VALUES = st.one_of(
    st.lists(st.floats(-1, 1, width=32), min_size=2, max_size=60),
    st.lists(st.sampled_from([-1.0, -0.5, 0.0, 0.0625, 1.0]), min_size=2, max_size=200),
    st.lists(st.floats(0, 1e-3), min_size=2, max_size=100),
)


def simulated_lower(values: list[float], alpha: float, runs: int) -> float:
    """The bound by its definition, from that many random weightings."""
    weights = np.random.default_rng(1).standard_exponential((runs, len(values) + 1))
    means = weights @ np.append(values, -1.0) / weights.sum(axis=1)
    return float(np.quantile(means, alpha))


@settings(max_examples=15, deadline=None)
@given(values=VALUES, alpha=st.sampled_from([0.4, 0.05, 0.02]))
def test_random_weights_find_about_the_same(values: list[float], alpha: float) -> None:
    exact = mean_bounds(values, alpha)
    low, high = (simulated_lower(values, each * alpha, 40_000) for each in (0.75, 1.24))
    assert low - 1e-3 <= exact.lower <= high + 1e-3


@settings(max_examples=100, deadline=None)
@given(values=VALUES, level=st.integers(0, len(LEVELS) - 1))
def test_a_stricter_level_has_a_lower_bound(values: list[float], level: int) -> None:
    points, times = np.unique(values, return_counts=True)
    if points.max() - points.min() < 1e-12:
        return
    alpha = LEVELS[level]
    bound, stricter = (lower_bound(points, times, each) for each in (alpha, alpha / 10))
    assert -1 <= stricter <= bound <= points.max()


def test_many_graded_scores() -> None:
    values = np.random.default_rng(0).normal(0, 0.1, 11_490).clip(-1, 1)
    found = mean_bounds(values, 0.05)
    assert found.lower == pytest.approx(simulated_lower(values.tolist(), 0.05, 400), abs=3e-4)
    assert found.upper == pytest.approx(-simulated_lower((-values).tolist(), 0.05, 400), abs=3e-4)


def test_many_distinct_values_only_widen_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """14,042 distinct scores took 5 to 17 s; the exact bound is within a step of the grid."""
    draw = np.random.default_rng(5)
    values = np.clip(draw.normal(-0.003, 0.1, 3_000), -1, 1)
    merged, p_merged = mean_bounds(values, 0.0175), p_value(values, -0.01, lowest=-1.0)
    monkeypatch.setattr(bound, "MAX_DISTINCT", 10**9)
    exact, p_exact = mean_bounds(values, 0.0175), p_value(values, -0.01, lowest=-1.0)
    assert 0 <= exact.lower - merged.lower <= bound.GRID
    assert 0 <= merged.upper - exact.upper <= bound.GRID
    assert p_merged >= p_exact


def test_values_on_the_grid_are_not_moved() -> None:
    values = np.arange(-600, 600) / 1e4
    points, times = bound.merge_down(values, np.ones(1200))
    assert np.all(points <= values[np.searchsorted(values, points)])
    assert times.sum() == 1200
    assert points.size >= 1_000
