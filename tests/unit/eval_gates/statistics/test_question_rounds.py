"""Rounds: always growing, ending at the cap, and the first one about as long as a gate takes."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval_gates.statistics.comparison import Comparison
from eval_gates.statistics.planned_bet import planned_bet
from eval_gates.statistics.power import SequentialGatePower, power_plan
from eval_gates.statistics.question_rounds import (
    SAFETY,
    UNKNOWN_QUESTION_COUNT,
    expected_questions,
    round_sizes,
)

BASELINE = 0.5  # a recovery is sized for one that knows half


@given(
    expected=st.floats(0, 1e9) | st.just(math.inf),
    batch=st.integers(1, 5000),
    cap=st.none() | st.integers(1, 100_000),
)
def test_rounds_grow_up_to_the_cap(expected: float, batch: int, cap: int | None) -> None:
    sizes = round_sizes(expected, batch, cap)

    assert sizes == sorted(set(sizes))
    assert sizes[-1] == (UNKNOWN_QUESTION_COUNT if cap is None else cap)
    assert sizes[0] >= min(SAFETY * expected, batch, sizes[-1])
    for size, following in pairwise(sizes):
        assert size % batch == 0
        assert following == min(2 * size, sizes[-1])


@given(expected=st.floats(1, 1e5), batch=st.integers(1, 500))
def test_the_first_round_suffices_and_is_not_much_longer(expected: float, batch: int) -> None:
    first = round_sizes(expected, batch, None)[0]

    assert first >= SAFETY * expected
    assert first <= max(batch, 2 * SAFETY * expected)


def test_sizes_by_example() -> None:
    assert round_sizes(1932, 64, 14_042) == [3072, 6144, 12_288, 14_042]
    assert round_sizes(100, 64, 48) == [48]
    assert round_sizes(100, 32, 164) == [128, 164]
    assert round_sizes(1, 64, 64) == [64]
    assert round_sizes(math.inf, 64, 14_042) == [14_042]  # a fixed test asks all in one round


def test_a_cap_that_is_not_known_is_beyond_every_benchmark() -> None:
    sizes = round_sizes(2000, 64, None)

    assert sizes[:3] == [3072, 6144, 12_288]
    assert sizes[-1] == UNKNOWN_QUESTION_COUNT > 1_000_000
    assert round_sizes(math.inf, 64, None) == [UNKNOWN_QUESTION_COUNT]


def test_another_margin_reuses_a_round() -> None:
    """The rounds of a strict and of a wide margin are on one grid, so that books are shared."""
    strict, wide = round_sizes(2000, 64, 14_042), round_sizes(560, 64, 14_042)
    assert set(strict) <= set(wide)


MARGINS = st.sampled_from(["points", "recovery"])


def margin_of(kind: str, allowed: float) -> Comparison:
    """A margin that allows a drop of `allowed` at the baseline that rounds are sized for."""
    if kind == "points":
        return Comparison.points(allowed)
    return Comparison.recovery(1 - allowed / BASELINE)


@given(
    kind=MARGINS,
    margin=st.floats(0.002, 0.4),
    wider=st.floats(1.05, 10),
    alpha=st.floats(0.001, 0.2),
    flips=st.floats(0.001, 0.9),
    flip_size=st.floats(0.01, 1),
)
def test_tighter_margins_levels_and_more_flips_take_longer(
    kind: str, margin: float, wider: float, alpha: float, flips: float, flip_size: float
) -> None:
    wide = min(margin * wider, 0.45)
    expected = expected_questions(margin_of(kind, margin), alpha, flips, flip_size)
    slack = 1 - 1e-9

    assert expected > 0
    wider_takes = expected_questions(margin_of(kind, wide), alpha, flips, flip_size)
    surer_takes = expected_questions(margin_of(kind, margin), alpha / 2, flips, flip_size)
    assert wider_takes < expected < surer_takes or wider_takes <= expected == math.inf
    more = expected_questions(margin_of(kind, margin), alpha, min(1.0, 1.5 * flips), flip_size)
    assert more >= expected * slack
    larger = expected_questions(margin_of(kind, margin), alpha, flips, min(1.0, 2 * flip_size))
    assert larger >= expected * slack


@given(hundredths=st.integers(1, 98), flips=st.floats(0.001, 0.9), flip_size=st.floats(0.01, 1))
def test_a_planned_bet_costs_little_and_the_right_one_saves(
    hundredths: int, flips: float, flip_size: float
) -> None:
    bet = hundredths / 100  # as bets are planned
    even, planned, best = (
        expected_questions(Comparison.points(0.02), 0.05, flips, flip_size, each)
        for each in (None, bet, planned_bet(Comparison.points(0.02), flips, flip_size))
    )
    assert best <= planned * 1.001
    assert planned <= 1.2 * even
    assert best < even or math.isinf(even)


def test_where_every_bet_loses_all_is_asked_at_once() -> None:
    """A tenth of a point with 40 % flips: imagined runs stay open, too."""
    expected = expected_questions(Comparison.points(0.001), 0.05, 0.4, 1.0)

    assert expected == math.inf
    assert round_sizes(expected, 64, 14_042) == [14_042]
    assert planned("points", 0.001, 0.05, 0.4, 1.0, cap=14_042).chance_of_pass < 0.05


def test_no_flips_at_all() -> None:
    assert 100 < expected_questions(Comparison.points(0.01), 0.05, 0.0, 1.0) < 1000


def planned(
    kind: str, margin: float, alpha: float, flips: float, size: float, cap: int
) -> SequentialGatePower:
    return power_plan(
        margin_of(kind, margin),
        alpha=alpha,
        questions=cap,
        flips=flips,
        flip_size=size,
        baseline=BASELINE if kind == "recovery" else None,
        batch=1,
        replays=40,
    )


FLIPS = [(0.002, 1.0), (0.02, 1.0), (0.06, 1.0), (0.15, 1.0), (0.5, 0.1), (0.5, 0.02), (0.9, 0.2)]


@pytest.mark.parametrize("kind", ["points", "recovery"])
@pytest.mark.parametrize("margin", [0.01, 0.02, 0.1, 0.3])
@pytest.mark.parametrize("alpha", [0.05, 0.05 / 4])
def test_the_expectation_is_about_that_of_imagined_runs(
    kind: str, margin: float, alpha: float
) -> None:
    for flips, size in FLIPS:
        written = margin_of(kind, margin)
        bet = planned_bet(written, flips, size, BASELINE)
        expected = expected_questions(written, alpha, flips, size, bet)
        if expected > 6000:
            continue  # imagining those takes too long
        runs = planned(kind, margin, alpha, flips, size, cap=math.ceil(4 * expected) + 500)
        assert 0.5 < expected / runs.expected_questions < 2, (flips, size)


@pytest.mark.parametrize("kind", ["points", "recovery"])
@pytest.mark.parametrize(("flips", "size"), [(0.02, 1.0), (0.06, 1.0), (0.5, 0.1)])
def test_a_first_round_decides_most_gates(kind: str, flips: float, size: float) -> None:
    written = margin_of(kind, 0.02)
    bet = planned_bet(written, flips, size, BASELINE)
    expected = expected_questions(written, 0.05, flips, size, bet)
    first = round_sizes(expected, 64, None)[0]
    assert planned(kind, 0.02, 0.05, flips, size, cap=first).chance_of_pass > 0.6


@pytest.mark.parametrize(("flips", "measured"), [(0.02, 1800), (0.06, 4600)])
def test_one_point_on_mmlu(flips: float, measured: int) -> None:
    """What replays over MMLU's 14,042 questions take, with replacement."""
    bet = planned_bet(Comparison.points(0.01), flips, 1.0)
    expected = expected_questions(Comparison.points(0.01), 0.05, flips, 1.0, bet)
    assert expected == pytest.approx(measured, rel=0.3)
