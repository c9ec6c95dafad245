"""Margins that run towards the other side."""

from __future__ import annotations

import sys
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kendalltau

from eval_gates.speed.drift import LEVEL, half_medians, kendall_p_value, would_reverse


@pytest.mark.parametrize(
    "margins",
    [
        [0.05, 0.04, 0.03, 0.02, 0.01, 0.005, 0.0],
        [50.0, 0.06, 0.05, 0.05, 0.03, 0.02, 0.02, 0.01],
        list(0.05 * 0.5 ** (np.arange(8) / 3) - 0.005),
    ],
)
def test_what_falls_to_nothing_is_undone(margins: list[float]) -> None:
    assert would_reverse(np.array(margins))
    assert not would_reverse(np.array(margins[::-1]))


@pytest.mark.parametrize(
    "margins",
    [
        [0.05] * 7,
        [0.05, 0.04, 0.06, 0.05, 0.04, 0.06, 0.05],
        [1.07, 1.06, 1.05, 1.04, 1.03, 1.02, 1.01],  # after as long again it is still far above
        [0.01, 0.05, 0.02, 0.06, 0.03, 0.07, 0.04],
        [-0.05],  # of one pair of lives, after which a share of 0.99 has failed
    ],
)
def test_what_is_steady_or_far_above_is_not(margins: list[float]) -> None:
    assert not would_reverse(np.array(margins))


def test_chance_alone_is_taken_for_drift_as_seldom_as_it_says() -> None:
    """At the boundary, where the size of a trend never excuses it."""
    runs = np.random.default_rng(2).standard_t(3, (2_000, 8))
    assert np.mean([would_reverse(run) for run in runs]) <= LEVEL


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=25), st.floats(0.01, 100))
def test_units_do_not_matter(margins: list[float], scale: float) -> None:
    whole = np.round(np.array(margins), 3)
    assert would_reverse(whole) == would_reverse(whole * 2.0 ** np.round(np.log2(scale)))


def test_halves_leave_the_middle_out() -> None:
    assert half_medians(np.array([1.0, 3.0, 100.0, 5.0, 9.0])) == (2.0, 7.0)
    assert half_medians(np.array([1.0, 3.0])) == (1.0, 3.0)


@pytest.mark.parametrize(("size", "near"), [(2, 1e-9), (5, 1e-9), (22, 1e-9), (60, 5e-3)])
def test_falls_are_as_likely_as_scipy_says(size: int, near: float) -> None:
    chance = np.random.default_rng(size)
    for slope in (0.0, 1.0, 3.0):
        values = chance.normal(size=size) - slope * np.arange(size) / size
        said = kendalltau(np.arange(size), values, alternative="less").pvalue
        assert kendall_p_value(values) == pytest.approx(said, abs=near)


def test_a_server_s_environment_has_no_scipy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    monkeypatch.setitem(sys.modules, "scipy.stats", None)
    assert would_reverse(np.array([0.05, 0.04, 0.03, 0.02, 0.01, 0.005, 0.0]))


def test_many_rounds_are_looked_at_in_little_memory() -> None:
    """20,000 loads are the most that a bundle may hold."""
    tracemalloc.start()
    try:
        assert would_reverse(np.linspace(1, 0, 20_000))
        assert not would_reverse(np.linspace(1, 0.6, 20_000))
        assert tracemalloc.get_traced_memory()[1] < 5e6
    finally:
        tracemalloc.stop()
