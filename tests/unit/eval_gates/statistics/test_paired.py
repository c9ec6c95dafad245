"""Bounds on paired differences: published values, properties, and error rates at the boundary."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eval_gates.statistics.gaffke import log_chance_below
from eval_gates.statistics.paired import (
    GRADED,
    IDENTICAL,
    TANGO,
    PairedInterval,
    graded_interval,
    identical_interval,
    tango_interval,
)

small_counts = st.integers(min_value=0, max_value=60)
alphas = st.floats(min_value=0.001, max_value=0.4)


def table(both: int, lost: int, gained: int, neither: int, alpha: float) -> PairedInterval:
    return tango_interval(both, lost, gained, neither, alpha)


# Two-sided 95 % intervals of Fagerland, Lydersen & Laake (2014), BMC Medical Research
# Methodology / R package contingencytables, so alpha is 0.025 a side. Their difference is row
# minus column, ours candidate (second) minus baseline (first): gains are their n12.
@pytest.mark.parametrize(
    ("counts", "lower", "upper"),
    [
        ((59, 16, 6, 80), -0.1240, -0.0054),  # Cavo et al. 2012
        ((1, 7, 1, 12), -0.517, -0.026),  # Bentur et al. 2009
    ],
)
def test_tango_agrees_with_published_intervals(
    counts: tuple[int, int, int, int], lower: float, upper: float
) -> None:
    found = tango_interval(*counts, alpha=0.025)

    digits = 4 if counts[0] == 59 else 3
    assert round(found.lower, digits) == lower
    assert round(found.upper, digits) == upper
    assert found.method == TANGO


@pytest.mark.parametrize("questions", [1, 24, 164, 14_042])
def test_tango_without_flips_is_z2_over_n_plus_z2(questions: int) -> None:
    square = 1.6448536269514722**2

    found = tango_interval(questions, 0, 0, 0, alpha=0.05)

    assert found.upper == pytest.approx(square / (questions + square), abs=1e-10)
    assert found.lower == -found.upper


@pytest.mark.parametrize("questions", [1, 5, 164])
def test_tango_with_every_answer_lost(questions: int) -> None:
    square = 1.6448536269514722**2

    found = tango_interval(0, questions, 0, 0, alpha=0.05)

    assert found.lower == -1
    assert found.upper == pytest.approx(-(questions - square) / (questions + square), abs=1e-9)


def test_tango_ignores_how_the_unchanged_answers_split() -> None:
    assert tango_interval(50, 4, 2, 8, 0.05) == tango_interval(8, 4, 2, 50, 0.05)


@given(small_counts, small_counts, small_counts, alphas)
def test_tango_contains_the_estimate_and_stays_in_range(
    same: int, lost: int, gained: int, alpha: float
) -> None:
    questions = same + lost + gained
    if questions == 0:
        return
    found = table(same, lost, gained, 0, alpha)

    estimate = (gained - lost) / questions
    assert -1 <= found.lower <= estimate + 1e-12
    assert estimate - 1e-12 <= found.upper <= 1


@given(small_counts, small_counts, small_counts, alphas)
def test_tango_is_antisymmetric(same: int, lost: int, gained: int, alpha: float) -> None:
    if same + lost + gained == 0:
        return
    forward = table(same, lost, gained, 0, alpha)
    backward = table(same, gained, lost, 0, alpha)

    assert forward.lower == -backward.upper
    assert forward.upper == -backward.lower


@given(st.integers(1, 60), small_counts, small_counts, alphas, alphas)
def test_tango_widens_as_alpha_shrinks(
    same: int, lost: int, gained: int, first: float, second: float
) -> None:
    strict = table(same, lost, gained, 0, min(first, second))
    loose = table(same, lost, gained, 0, max(first, second))

    assert strict.lower <= loose.lower + 1e-9
    assert strict.upper >= loose.upper - 1e-9


@given(small_counts, st.integers(0, 30), st.integers(1, 30))
def test_tango_falls_with_every_answer_lost(same: int, lost: int, gained: int) -> None:
    better = table(same, lost, gained, 0, 0.05)
    worse = table(same, lost + 1, gained - 1, 0, 0.05)

    assert worse.lower < better.lower or better.lower == -1
    assert worse.upper < better.upper


@given(st.integers(1, 300), st.integers(0, 40), st.integers(0, 40))
def test_tango_bound_solves_the_score_equation(same: int, lost: int, gained: int) -> None:
    """Against the statistic with its nuisance parameter found by brute force, not by formula."""
    questions = same + lost + gained
    bound = table(same, lost, gained, 0, 0.05).lower
    if bound < -0.9999:
        return

    def likelihood(loss: float) -> float:
        gain = loss + bound
        rest = 1 - gain - loss
        terms = ((gained, gain), (lost, loss), (same, rest))
        return sum(count * math.log(max(p, 1e-300)) for count, p in terms if count)

    low, high = max(0.0, -bound), (1 - bound) / 2
    for _ in range(200):  # the log-likelihood is concave: ternary search
        left, right = low + (high - low) / 3, high - (high - low) / 3
        if likelihood(left) < likelihood(right):
            low = left
        else:
            high = right
    loss = (low + high) / 2
    variance = questions * (2 * loss + bound - bound**2)
    statistic = (gained - lost - questions * bound) / math.sqrt(variance)
    assert statistic == pytest.approx(1.6448536, abs=2e-3)


@cache
def lower_bound(questions: int, lost: int, gained: int) -> float:
    return tango_interval(questions - lost - gained, lost, gained, 0, 0.05).lower


@pytest.mark.parametrize("questions", [24, 64, 100])
@pytest.mark.parametrize(
    ("drop", "flips"),
    [(0.02, 0.02), (0.05, 0.06), (0.05, 0.1), (0.15, 0.2), (0.15, 0.4), (0.4, 0.4)],
)
def test_tango_error_rate_at_the_boundary(questions: int, drop: float, flips: float) -> None:
    """A model exactly one margin worse passes at most about alpha of the time.

    Summed over every outcome rather than simulated, so there is no sampling error to allow for.
    """
    loss, gain = (flips + drop) / 2, (flips - drop) / 2
    error = 0.0
    for lost in range(questions + 1):
        for gained in range(questions + 1 - lost):
            same = questions - lost - gained
            ways = math.comb(questions, lost) * math.comb(questions - lost, gained)
            chance = ways * loss**lost * gain**gained * (1 - loss - gain) ** same
            if chance > 1e-9 and lower_bound(questions, lost, gained) > -drop:
                error += chance

    assert error <= 0.06


@pytest.mark.parametrize("counts", [(0, 0, 0, 0), (5, -1, 0, 0)])
def test_tango_refuses_impossible_counts(counts: tuple[int, int, int, int]) -> None:
    with pytest.raises(ValueError, match="questions"):
        tango_interval(*counts, alpha=0.05)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0, -0.1, math.nan])
def test_alpha_out_of_range_is_refused(alpha: float) -> None:
    with pytest.raises(ValueError, match="alpha"):
        tango_interval(10, 1, 1, 0, alpha)
    with pytest.raises(ValueError, match="alpha"):
        graded_interval([0.1, 0.2], alpha)


# --- graded scores ------------------------------------------------------------------------------


@pytest.mark.parametrize("right", [1, 7, 24])
def test_right_or_wrong_values_give_clopper_and_pearsons_bound(right: int) -> None:
    from scipy.stats import binomtest

    values = [1.0] * right + [-1.0] * (25 - right)  # -1 stands for wrong, the worst there is
    theirs = binomtest(right, 25).proportion_ci(0.9, method="exact")
    ours = graded_interval(values, alpha=0.05)

    assert ours.method == GRADED
    assert (ours.lower + 1) / 2 == pytest.approx(theirs.low, abs=1e-7)
    assert (ours.upper + 1) / 2 == pytest.approx(theirs.high, abs=1e-7)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(-1, 1, width=32), min_size=2, max_size=40), st.floats(0.005, 0.1))
def test_graded_lies_around_the_mean(values: list[float], alpha: float) -> None:
    found = graded_interval(values, alpha)

    assert found.lower <= np.mean(values) + 1e-9
    assert found.upper >= np.mean(values) - 1e-9
    if found.method == GRADED:
        assert -1 <= found.lower <= found.upper <= 1


def rare_losses(generator: np.random.Generator, questions: int, drop: float) -> np.ndarray:
    """A few documents lose all, the others next to nothing: what few documents rarely show."""
    lost = generator.random(questions) < drop
    return np.where(lost, -1.0, generator.normal(0, 1e-3, questions)).clip(-1, 1)


def halved(generator: np.random.Generator, questions: int, drop: float) -> np.ndarray:
    return np.where(generator.random(questions) < 2 * drop, -0.5, 0.0)


def spread(generator: np.random.Generator, questions: int, drop: float) -> np.ndarray:
    """ROUGE-like: six in ten change, either way, and lose `drop` on average."""
    changed = generator.random(questions) < 0.6
    return np.where(changed, generator.normal(-drop / 0.6, 0.1, questions), 0).clip(-1, 1)


def bound_is_above(values: np.ndarray, threshold: float, alpha: float) -> bool:
    """Whether the lower bound exceeds the threshold, without the search for the bound itself."""
    points, times = np.unique(values, return_counts=True)
    return log_chance_below(np.append(points, -1.0), np.append(times, 1), threshold) < math.log(
        alpha
    )


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.floats(-1, 1, width=32), min_size=2, max_size=20, unique=True),
    st.floats(-0.9, 0.9),
)
def test_a_bound_is_above_what_it_exceeds(values: list[float], threshold: float) -> None:
    lower = graded_interval(values, 0.05).lower
    if abs(lower - threshold) > 1e-6:
        assert bound_is_above(np.array(values), threshold, 0.05) == (lower > threshold)


@pytest.mark.parametrize("draw", [rare_losses, halved, spread])
@pytest.mark.parametrize(("questions", "drop"), [(16, 0.05), (32, 0.12), (50, 0.05), (150, 0.05)])
def test_graded_error_rate_at_the_boundary(draw: Any, questions: int, drop: float) -> None:
    """BCa passed 16, 32 and 50 such documents in 44, 21 and 9 % of trials."""
    generator = np.random.default_rng(5)
    trials = 400
    misses = sum(
        bound_is_above(draw(generator, questions, drop), -drop, 0.05) for _ in range(trials)
    )
    assert misses / trials <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / trials)


@pytest.mark.parametrize("value", [0.0, 0.25, -1.0, 1.0])
def test_equal_differences_claim_no_certainty(value: float) -> None:
    found = graded_interval([value] * 24, 0.05)

    share = 0.05 ** (1 / 24)
    assert found.method == IDENTICAL
    assert found.lower == pytest.approx(share * value - (1 - share))
    assert found.upper == pytest.approx(share * value + (1 - share))
    assert -1 <= found.lower <= value <= found.upper <= 1


def test_equal_differences_bound_errs_at_most_alpha() -> None:
    """The worst world that shows 24 zeros with chance alpha lies exactly on the bound."""
    bound = identical_interval(0.0, 24, 0.05).lower

    assert (1 + bound) ** 24 == pytest.approx(0.05)


def test_one_difference_says_next_to_nothing() -> None:
    assert graded_interval([0.0], 0.05).lower == pytest.approx(-0.95)


def test_rounding_noise_is_not_spread() -> None:
    assert graded_interval([0.1, 0.1 + 1e-16, 0.3 - 0.2], 0.05).method == IDENTICAL


@pytest.mark.parametrize("values", [[], [0.1, math.nan], [0.0, 1.5], [math.inf]])
def test_graded_refuses_missing_or_unbounded_differences(values: list[float]) -> None:
    with pytest.raises(ValueError, match="difference"):
        graded_interval(values, 0.05)
