"""Ratios of mean tokens and of tokens per solved task, with intervals by the delta method.

For problem i, T is its answers' mean tokens and S their solved share. A side's cost is E[T] / E[S].
The logarithm of a ratio of means is asymptotically normal (Cox 1990, Statistics & Probability
Letters 9:83-90). From MIN_PROBLEMS problems on, a bound at the limit errs in 4.5 to 5.5 % with
usual lengths, and in up to 8 % where one problem in 40 has answers ten times as long.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING

from eval_gates.statistics.bound import check_level

if TYPE_CHECKING:
    from eval_gates.statistics.comparison import FloatArray

MIN_PROBLEMS = 500
"""With fewer problems there is no interval."""


@dataclass(frozen=True)
class RatioInterval:
    """A ratio, variant over baseline, with one-sided bounds; None where there is none."""

    ratio: float | None
    lower: float | None
    upper: float | None


def tokens_ratio(before: FloatArray, after: FloatArray, level: float) -> RatioInterval:
    """Compare mean tokens of each problem's answers; shape [n] each, above 0.

    `level` is the error rate of each bound.
    """
    return _interval([(after, 1), (before, -1)], level)


def cost_ratio(
    before: tuple[FloatArray, FloatArray], after: tuple[FloatArray, FloatArray], level: float
) -> RatioInterval:
    """Compare tokens per solved task.

    Args:
        before: tokens and solved shares of each problem, of the baseline; shape [n] each.
        after: of the variant.
        level: error rate of each bound.
    """
    return _interval([(after[0], 1), (after[1], -1), (before[0], -1), (before[1], 1)], level)


def _interval(factors: list[tuple[FloatArray, int]], level: float) -> RatioInterval:
    """Return the product of means, each to a power of 1 or -1, over the same problems."""
    import numpy as np

    check_level(level)
    means = [float(values.mean()) for values, _ in factors]
    if min(means) <= 0:
        return RatioInterval(None, None, None)
    log = sum(power * math.log(mean) for mean, (_, power) in zip(means, factors, strict=True))
    n = factors[0][0].size
    if n < MIN_PROBLEMS:
        return RatioInterval(math.exp(log), None, None)
    parts = [power * v / mean for mean, (v, power) in zip(means, factors, strict=True)]
    error = float(np.sum(parts, axis=0).std(ddof=1)) / math.sqrt(n)
    reach = NormalDist().inv_cdf(1 - level) * error
    return RatioInterval(math.exp(log), math.exp(log - reach), math.exp(log + reach))
