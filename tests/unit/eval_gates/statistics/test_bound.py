"""The one bound: exact where that is known, monotone, and honest at its level."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta

from eval_gates.statistics.bound import counted_bounds, mean_bounds, min_identical_values, p_value

LEVELS = (0.05, 0.0225, 0.001)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("n", "lost"), [(8, 0), (8, 3), (64, 1), (500, 40), (14_042, 300)])
def test_two_points_give_clopper_pearson(n: int, lost: int, level: float) -> None:
    found = mean_bounds([-1.0] * lost + [0.0] * (n - lost), level, highest=0.0)
    # The share lost has the upper bound of Clopper and Pearson.
    assert found.lower == pytest.approx(-beta.ppf(1 - level, lost + 1, n - lost), abs=1e-6)
    upper = -beta.ppf(level, lost, n - lost + 1) if lost else 0.0
    assert found.upper == pytest.approx(upper, abs=1e-6)


@pytest.mark.parametrize(("lowest", "highest"), [(-1.0, 1.0), (-0.99, 1.0), (0.0, 1.0)])
def test_the_range_is_the_worst_case(lowest: float, highest: float) -> None:
    """Equal values leave room for the worst value only."""
    found = mean_bounds([0.5] * 20, 0.05, lowest=lowest, highest=highest)
    share = 0.05 ** (1 / 20)
    assert found.lower == pytest.approx(share * 0.5 + (1 - share) * lowest)
    assert found.upper == pytest.approx(share * 0.5 + (1 - share) * highest)


@given(
    values=st.lists(st.floats(-1, 1), min_size=1, max_size=40),
    limit=st.floats(-0.99, 0.9),
    level=st.sampled_from(LEVELS),
)
def test_p_value_and_bound_agree(values: list[float], limit: float, level: float) -> None:
    lower = mean_bounds(values, level).lower
    p = p_value(values, limit, lowest=-1.0)
    assert 0 <= p <= 1
    if lower > limit + 1e-6:
        assert p <= level * (1 + 1e-4)
    if lower < limit - 1e-6:
        assert p >= level * (1 - 1e-4)


@given(values=st.lists(st.floats(-1, 1), min_size=1, max_size=30), level=st.sampled_from(LEVELS))
def test_bounds_contain_the_mean_and_mirror(values: list[float], level: float) -> None:
    found, mirrored = mean_bounds(values, level), mean_bounds([-v for v in values], level)
    assert -1 <= found.lower <= np.mean(values) + 1e-9 <= found.upper + 2e-9 <= 1 + 2e-9
    assert found.lower == pytest.approx(-mirrored.upper, abs=1e-9)
    assert mean_bounds(values, level / 10).lower <= found.lower + 1e-9


def test_a_better_value_never_lowers_the_bound() -> None:
    values = list(np.random.default_rng(3).uniform(-1, 1, 30))
    bounds = []
    for place in range(30):
        bounds.append(mean_bounds(values, 0.05).lower)
        values[place] = 1.0
    assert bounds == sorted(bounds)


def test_expected_counts_are_a_typical_sample() -> None:
    values = [-1.0] * 20 + [0.0] * 460 + [1.0] * 20
    counted = counted_bounds([-1.0, 0.0, 1.0], [20.0, 460.0, 20.0], 0.05)
    assert counted == mean_bounds(values, 0.05)
    between = counted_bounds([-1.0, 0.0, 1.0], [20.5, 459.0, 20.5], 0.05)
    assert between.lower < counted.lower


def test_min_identical_values() -> None:
    for margin in (0.01, 0.05, 0.25):
        least = min_identical_values(margin, 0.05)
        assert mean_bounds([0.0] * least, 0.05).lower > -margin
        assert mean_bounds([0.0] * (least - 1), 0.05).lower <= -margin
    assert min_identical_values(0.1, 0.9**2) == 3  # with two, the bound is the margin


@pytest.mark.parametrize("level", [0.0, 0.5, -0.1, math.nan])
def test_a_wrong_level_is_refused(level: float) -> None:
    with pytest.raises(ValueError, match="error rate"):
        mean_bounds([0.0], level)


@pytest.mark.parametrize("values", [[], [math.nan], [1.5], [-1.5]])
def test_wrong_values_are_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match=r"values|value per question"):
        mean_bounds(values, 0.05)
