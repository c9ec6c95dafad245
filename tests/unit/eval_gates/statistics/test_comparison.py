"""The two ways of stating a margin, as one bounded value a question and a threshold."""

import math

import pytest

from eval_gates.statistics.comparison import Comparison


def test_points_subtract_the_baseline() -> None:
    comparison = Comparison.points(0.01)
    values = comparison.values([1, 1, 0, 0.5], [1, 0, 1, 0.25])
    assert values.tolist() == [0, -1, 1, -0.25]
    assert (comparison.lowest, comparison.highest, comparison.threshold) == (-1, 1, -0.01)


def test_recovery_subtracts_a_share_of_the_baseline() -> None:
    comparison = Comparison.recovery(0.9)
    values = comparison.values([1, 1, 0, 0], [1, 0, 1, 0])
    assert values.tolist() == pytest.approx([0.1, -0.9, 1, 0])
    assert (comparison.lowest, comparison.highest, comparison.threshold) == (-0.9, 1, 0)


@pytest.mark.parametrize("size", [0, 1, -0.1, 1.5, math.nan])
def test_impossible_margins_are_refused(size: float) -> None:
    with pytest.raises(ValueError, match="margin"):
        Comparison.points(size)
    with pytest.raises(ValueError, match="recovery"):
        Comparison.recovery(size)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -0.1, 1.1])
def test_missing_scores_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="score"):
        Comparison.points(0.01).values([1, 1], [1, bad])
    with pytest.raises(ValueError, match="score"):
        Comparison.points(0.01).values([bad, 1], [1, 1])


def test_unpaired_scores_are_refused() -> None:
    with pytest.raises(ValueError, match=r"2 scores and 1"):
        Comparison.points(0.01).values([1, 1], [1])
