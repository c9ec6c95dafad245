"""Planned looks: fixed places, shares that sum to alpha, and a level that holds."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_findings import binary
from scipy.stats import binom

from eval_gates.statistics.bound import counted_bounds, mean_bounds
from eval_gates.statistics.comparison import Comparison
from eval_gates.statistics.looks import Look, findings, first_decided, planned_looks

TWO = Comparison.points(0.02)


def test_places_and_shares() -> None:
    assert planned_looks(63, 0.02) == (Look(63, 1.0),)
    assert planned_looks(64, 0.02) == (Look(16, 0.1), Look(32, 0.2), Look(64, 0.7))
    assert [look.n for look in planned_looks(14_042, 0.01)] == [3511, 7021, 14042]
    early = planned_looks(14_042, 0.02)
    assert [(look.n, look.share) for look in early] == [
        *((878, 0.05), (3511, 0.1), (7021, 0.15)),
        (14_042, 0.7),
    ]
    for values in (64, 541, 14_042):
        for margin in (0.01, 0.05):
            shares = [look.share for look in planned_looks(values, margin)]
            assert sum(shares) == pytest.approx(1)


def test_a_clear_result_takes_a_sixteenth_where_the_margin_is_wide() -> None:
    """3,511 questions are three times too many for two points and few flips."""
    before, after = binary(14_042, 30, 30)
    assert first_decided(findings(before, after, TWO, 0.025, 14_042)).n == 878
    assert first_decided(findings(before, after, Comparison.points(0.01), 0.025, 14_042)).n == 3_511


def test_an_early_look_decides_and_later_answers_change_nothing() -> None:
    before, after = binary(4000, 8, 8)
    found = first_decided(findings(before, after, TWO, 0.05, 4000))
    assert (found.state, found.number, found.n) == ("pass", 1, 1000)
    spoilt = after[:1000] + [0.0] * 3000
    assert first_decided(findings(before, spoilt, TWO, 0.05, 4000)) == found
    assert first_decided(findings(before[:1000], after[:1000], TWO, 0.05, 4000)) == found


def test_the_bound_is_at_the_looks_share() -> None:
    before, after = binary(4000, 8, 8)
    found = first_decided(findings(before, after, TWO, 0.05, 4000))
    values = [a - b for a, b in zip(after[:1000], before[:1000], strict=True)]
    assert found.lower == mean_bounds(values, 0.005).lower
    assert found.level == pytest.approx(0.005)


def test_fewer_answers_than_the_first_look_are_refused() -> None:
    with pytest.raises(ValueError, match="first look"):
        first_decided(findings([1.0] * 999, [1.0] * 999, TWO, 0.05, 4000))


def test_an_insensitive_gate_only_fails() -> None:
    same = [1.0] * 4000
    assert first_decided(findings(same, same, TWO, 0.05, 4000, can_pass=False)).state == "open"
    assert (
        first_decided(findings(same, [0.0] * 4000, TWO, 0.05, 4000, can_pass=False)).state == "fail"
    )


def test_answers_that_fit_any_question_do_not_pass() -> None:
    same = [0.2] * 400
    elsewhere = [0.0] * 200
    wide = Comparison.points(0.1)
    fitting, unfitting = (
        first_decided(findings(same, same, wide, 0.05, 400, own))
        for own in ([0.2] * 200, elsewhere)
    )
    assert (fitting.state, fitting.n, unfitting.state) == ("pass", 100, "open")
    assert fitting.own == mean_bounds([0.2] * 50, 0.005).lower
    # A share s of the 50 is above 0 if 0.2 s > 1 - s; the first look has a tenth of alpha.
    assert fitting.p_value == pytest.approx(10 * (1 / 1.2) ** 50)
    assert unfitting.p_value == 1.0


@given(
    lost=st.integers(0, 60),
    gained=st.integers(0, 60),
    alpha=st.sampled_from([0.05, 0.0225, 0.01]),
    kind=st.sampled_from([TWO, Comparison.points(0.1), Comparison.recovery(0.97)]),
)
def test_p_value_says_whether_it_passes(
    lost: int, gained: int, alpha: float, kind: Comparison
) -> None:
    before, after = binary(300, lost, gained)
    found = first_decided(findings(before, after, kind, alpha, 300))
    if found.state == "pass":
        assert found.p_value <= alpha * 1.001
    if found.state == "open":
        assert found.p_value >= alpha * 0.999


@pytest.mark.parametrize(
    ("comparison", "lose", "gain"),
    [
        (Comparison.points(0.02), 0.02, 0.0),
        (Comparison.points(0.02), 0.06, 0.04),
        (Comparison.points(0.25), 0.25, 0.0),
    ],
)
def test_level_at_the_margin(comparison: Comparison, lose: float, gain: float) -> None:
    """Truth exactly at the margin: false passes at most alpha and two standard errors."""
    generator, runs, alpha, n = np.random.default_rng(7), 400, 0.05, 300
    passed = 0
    for _ in range(runs):
        drawn = generator.choice([-1, 0, 1], size=n, p=[lose, 1 - lose - gain, gain])
        before = np.where(drawn == 1, 0.0, 1.0)
        found = first_decided(
            findings(before.tolist(), (before + drawn).tolist(), comparison, alpha, n)
        )
        passed += found.state == "pass"
    assert passed / runs <= alpha + 2 * np.sqrt(alpha * (1 - alpha) / runs)


def passes_exactly(low: float, high: float, margin: float, n: int, alpha: float) -> float:
    """Return the exact chance of a pass at any look of values that are `low` or `high`."""
    chance = (-margin - low) / (high - low)
    open_ones = np.ones(1)
    least = before = 0
    passed = 0.0
    for look in planned_looks(n, margin):
        level = alpha * look.share

        def shows(highs: int, look: Look = look, level: float = level) -> bool:
            counts = {low: look.n - highs, high: highs}
            points = [value for value, count in counts.items() if count]
            times = [count for count in counts.values() if count]
            return counted_bounds(points, times, level).lower > -margin

        new = look.n - before
        first, last = (int(binom.ppf(part, new, chance)) for part in (1e-13, 1 - 1e-13))
        open_ones = np.convolve(open_ones, binom.pmf(np.arange(first, last + 1), new, chance))
        least += first
        before = look.n
        needed = bisect_left(range(look.n + 1), True, key=shows)
        passes = np.arange(least, least + open_ones.size) >= needed
        passed += float(open_ones[passes].sum())
        open_ones = np.where(passes, 0.0, open_ones)
    return passed


@settings(max_examples=6)
@given(
    margin=st.floats(0.02, 0.3),
    n=st.integers(4_096, 14_042),
    alpha=st.sampled_from([0.05, 0.025, 0.002]),
    low=st.sampled_from([-1.0, -0.5]),
    high=st.sampled_from([0.0, 0.05, 1.0]),
)
def test_four_looks_err_in_at_most_alpha(
    margin: float, n: int, alpha: float, low: float, high: float
) -> None:
    """Exactly, with a truth at the margin."""
    assert len(planned_looks(n, margin)) == 4
    assert passes_exactly(low, high, margin, n, alpha) <= alpha
