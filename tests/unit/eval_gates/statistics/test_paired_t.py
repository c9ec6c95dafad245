"""Student's t against published values, and that it errs as often as it says."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from eval_gates.statistics.paired_t import chance_above, compare_mean

# Student 1908, Biometrika 6:20: additional hours of sleep by one isomer over the other.
SLEEP = [1.2, 2.4, 1.3, 1.3, 0.0, 1.0, 1.8, 0.8, 4.6, 1.4]


def test_it_is_students_own_example() -> None:
    found = compare_mean(SLEEP, 0.0, 0.025)
    assert found.mean == pytest.approx(1.58)
    assert found.p_value == pytest.approx(0.002833 / 2, abs=1e-5)
    low, high = stats.ttest_1samp(SLEEP, 0.0).confidence_interval(0.95)
    assert found.interval == pytest.approx((low, high))
    assert (found.lower, found.upper) == pytest.approx((low, high))


def test_values_without_spread() -> None:
    found = compare_mean([0.1, 0.1, 0.1], 0.0, 0.05)
    assert (found.lower, found.upper, found.p_value) == (pytest.approx(0.1),) * 2 + (0.0,)
    assert compare_mean([0.0, 0.0], 0.0, 0.05).p_value == 1.0
    with pytest.raises(ValueError, match="1 values"):
        compare_mean([0.1], 0.0, 0.05)


@pytest.mark.parametrize("deviation", [0.02, 0.06])
def test_the_chance_is_that_of_replays(deviation: float) -> None:
    chance = np.random.default_rng(1)
    for truth in (0.0, 0.05):
        draws = chance.normal(truth, deviation, (2000, 5)).tolist()
        found = np.mean([compare_mean(each, 0.0, 0.025).lower > 0 for each in draws])
        wanted = chance_above(truth, 0.0, deviation, 5, 0.025)
        assert found == pytest.approx(wanted, abs=3 * np.sqrt(wanted * (1 - wanted) / 2000))
        if truth == 0.0:
            assert wanted == pytest.approx(0.025)
