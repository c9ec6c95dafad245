"""Student's t of a mean of independent values, such as logarithms of paired speeds.

Student 1908, Biometrika 6:1-25. Exact for normal values; five or six symmetric ones hold the level.
It may miss what one start in ten does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

INTERVAL = 0.95


@dataclass(frozen=True)
class MeanTest:
    """A mean against a threshold."""

    mean: float
    lower: float  # one-sided bounds, each at the test's level
    upper: float
    interval: tuple[float, float]  # two-sided, 95 %
    p_value: float  # of 'the mean is at most the threshold'


def compare_mean(values: Sequence[float], threshold: float, level: float) -> MeanTest:
    """Compare the mean with the threshold; ValueError with fewer than two values.

    `level` is the error rate of each bound.
    """
    from scipy.special import stdtr, stdtrit

    if len(values) < 2:
        raise ValueError(f"{len(values)} values have no spread")
    mean = fmean(values)
    free = len(values) - 1
    error = stdev(values) / math.sqrt(len(values))
    reach, both = (float(stdtrit(free, 1 - tail)) * error for tail in (level, (1 - INTERVAL) / 2))
    p_value = float(mean <= threshold)
    if error > 0:
        p_value = float(stdtr(free, (threshold - mean) / error))
    return MeanTest(mean, mean - reach, mean + reach, (mean - both, mean + both), p_value)


def chance_above(truth: float, threshold: float, deviation: float, n: int, level: float) -> float:
    """Return the chance that n normal values' lower bound exceeds the threshold.

    `truth` is their mean.
    """
    from scipy.stats import nct, t

    shift = (truth - threshold) * math.sqrt(n) / deviation
    return float(nct.sf(t.ppf(1 - level, n - 1), n - 1, shift))
