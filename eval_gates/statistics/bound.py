"""One-sided confidence bounds of a mean of independent values.

For two-point values Gaffke's bound is Clopper and Pearson's. For others its validity is a
conjecture without a known excess (`benchmarks/gate_power.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eval_gates.statistics.gaffke import log_chance_below, lower_bound, merge_down

if TYPE_CHECKING:
    from eval_gates.statistics.comparison import FloatArray

_SAME = 1e-12  # equal scores can differ by rounding
_TIE = 1e-9


@dataclass(frozen=True)
class Bounds:
    """Bounds of a mean, each wrong with probability at most the level."""

    lower: float
    upper: float


def mean_bounds(
    values: Sequence[float] | FloatArray,
    level: float,
    *,
    lowest: float = -1.0,
    highest: float = 1.0,
) -> Bounds:
    """Compute both bounds of the mean of values in [lowest, highest]; [n].

    `level` is the error rate of each bound.
    """
    import numpy as np

    points, times = np.unique(_checked(values, lowest, highest), return_counts=True)
    return counted_bounds(points, times.astype(float), level, lowest=lowest, highest=highest)


def counted_bounds(
    points: Sequence[float] | FloatArray,
    times: Sequence[float] | FloatArray,
    level: float,
    *,
    lowest: float = -1.0,
    highest: float = 1.0,
) -> Bounds:
    """Compute :func:`mean_bounds` of distinct values and counts.

    Expected counts give a typical sample's bounds.
    """
    import numpy as np

    check_level(level)
    checked = _checked(points, lowest, highest)
    order = np.argsort(checked)
    often = np.asarray(times, dtype=float)[order]
    checked = checked[order][often > 0]
    often = often[often > 0]
    return Bounds(
        _lower(checked, often, level, lowest),
        -_lower(-checked[::-1], often[::-1], level, -highest),
    )


def p_value(values: Sequence[float] | FloatArray, limit: float, *, lowest: float) -> float:
    """Return the smallest level at which the lower bound exceeds `limit`."""
    import numpy as np

    checked = _checked(values, lowest, math.inf)
    if float(checked.min()) < lowest + _SAME and float(checked.max()) - lowest < _SAME:
        return 1.0
    distinct, counts = np.unique(checked, return_counts=True)
    points, times = merge_down(distinct, counts.astype(float))
    points = np.maximum(points, lowest)
    return min(
        1.0, math.exp(log_chance_below(np.append(points, lowest), np.append(times, 1.0), limit))
    )


def min_identical_values(margin: float, level: float) -> int:
    """Return how many values of 0 show a mean above -margin."""
    # A bound equal to the margin shows nothing, and 2 may be computed as 1.999...
    return math.floor(math.log(level) / math.log1p(-margin) + _TIE) + 1


def check_level(level: float) -> None:
    """Raise ValueError unless the level is in (0, 0.5)."""
    if not 0 < level < 0.5:
        raise ValueError(f"the error rate of a bound must be in (0, 0.5), not {level}")


def _checked(values: Sequence[float] | FloatArray, lowest: float, highest: float) -> FloatArray:
    import numpy as np

    array = np.asarray(values, dtype=float)
    if array.ndim != 1 or array.size == 0:
        raise ValueError("a bound needs one value per question, and at least one")
    if not np.all((array >= lowest - _SAME) & (array <= highest + _SAME)):  # also refuses NaN
        raise ValueError(f"values must lie in [{lowest:g}, {highest:g}]")
    return array


def _lower(points: FloatArray, times: FloatArray, level: float, lowest: float) -> float:
    import numpy as np

    if float(points[-1] - points[0]) < _SAME:
        # With n equal values, the worst value may have a share of 1 - level ** (1 / n).
        share = level ** (1 / float(times.sum()))
        return float(share * points[0] + (1 - share) * lowest)
    points, times = merge_down(points, times)
    shift = lowest + 1
    return lower_bound(np.maximum(points - shift, -1.0), times, level) + shift
