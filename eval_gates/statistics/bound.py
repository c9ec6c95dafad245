"""One-sided confidence bounds of a mean of independent values.

For two-point values Gaffke's bound is Clopper and Pearson's. For others its validity is a
conjecture without a known excess (`benchmarks/gate_power.py`). It is computed exactly, so that it
holds at every level.

Gaffke's bound (2005; Learned-Miller & Thomas 2019, arXiv 1905.06208) weights the values, and one
more at the worst possible value, uniformly on the simplex. It is the point t below which this
weighted mean lies with probability alpha. This is P(Q <= 0) for Q = sum (value - t) x exponential
variable, with the cumulant function

K(s) = - sum over the values of ln(1 - s (value - t)).

P(Q <= 0) is the integral of -exp(K(s)) / s over any path to the left of 0, divided by 2 pi i
(Lugannani & Rice 1980, Advances in Applied Probability 12:475-490). The path here goes through the
saddle point of K.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

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


# --- Gaffke's bound ---

GRID = 1e-4
"""Many distinct values are moved down to multiples of it, so a bound falls by at most as much."""
MAX_DISTINCT = 500
_NEGLIGIBLE = -80.0  # of ln |exp(K)| on the path: what follows is below any precision
_SLICES = 20  # of the path's points, at a time
_POINTS = 200
_REACH = 10.0  # points of the path; its ends are sinh(10) widths away
_MAX_LOGARITHMS = 2_000_000  # at a time: limits memory
_FAR = 3.0  # standard deviations below 0: then P(Q <= 0) is at least nine in ten (Cantelli)
_NEAREST = 1e-15  # smallest distance of a bound to the worst value
_PRECISION = 1e-11


def lower_bound(values: FloatArray, times: FloatArray, alpha: float) -> float:
    """Return the bound that is above the mean with probability at most alpha.

    `values` are distinct, in [-1, 1], at least two; `times` their counts; [d] each.
    """
    import numpy as np
    from scipy.optimize import brentq

    points = np.append(values, -1.0)
    shapes = np.append(times, 1).astype(float)

    @cache  # the search asks for its ends again
    def excess(bound: float) -> float:
        return log_chance_below(points, shapes, bound) - math.log(alpha)

    lowest = -1 + _NEAREST
    highest = float(values.max())
    if excess(lowest) >= 0:
        return -1.0
    # The bound of a normal mean is near: each step outwards is longer.
    near, step = _guess(points, shapes, alpha)
    low = max(lowest, near - step)
    high = min(highest, near + step)
    while low > lowest and excess(low) >= 0:
        step *= 4
        low = max(lowest, near - step)
    while high < highest and excess(high) < 0:
        step *= 4
        high = min(highest, near + step)
    return float(brentq(excess, low, high, xtol=_PRECISION))


def _guess(points: FloatArray, shapes: FloatArray, alpha: float) -> tuple[float, float]:
    """Return the bound of a normal mean, and a third of its distance to the mean."""
    from scipy.special import ndtri

    total = float(shapes.sum())
    mean = float(shapes @ points) / total
    error = math.sqrt(float(shapes @ (points - mean) ** 2)) / total
    reach = -float(ndtri(alpha)) * error
    return mean - reach, max(reach / 3, 10 * _PRECISION)


def merge_down(values: FloatArray, times: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return many distinct values as multiples of GRID that are not above them, with counts.

    `values` are sorted. The lower bound falls, by at most GRID.
    """
    import numpy as np

    if values.size <= MAX_DISTINCT:
        return values, times
    cells = np.floor(values / GRID)
    kept, which = np.unique(cells, return_inverse=True)
    lowered = np.minimum(kept * GRID, values[np.searchsorted(cells, kept)])
    counts = np.bincount(which, weights=times).astype(float)
    return lowered, counts


def log_chance_below(points: FloatArray, shapes: FloatArray, bound: float) -> float:
    """Return the natural log of the probability that the weighted mean is at most `bound`.

    It is 0 if the probability is above nine in ten. `shapes` are of gamma distributions; [d].
    """
    import numpy as np

    gaps = points - bound
    if gaps.max() <= 0:
        return 0.0
    if gaps.min() >= 0:
        return -math.inf
    deviation = math.sqrt(float(shapes @ gaps**2))
    if float(shapes @ gaps) < -_FAR * deviation:
        return 0.0
    start = _saddle(gaps, shapes, deviation)
    ratios = gaps / (1 - start * gaps)
    width = 1 / math.sqrt(float(shapes @ ratios**2))
    bend = float(shapes @ ratios**3) * width**2 / 3
    # The other half is the mirror image. The path bends like steepest descent at the saddle point,
    # by at most 45 degrees.
    places = (np.arange(_POINTS) + 0.5) * (_REACH / _POINTS)
    height = width * np.sinh(places)
    lean = 1 + abs(bend) * height
    steps = bend * height**2 / lean + 1j * height
    slopes = (bend * height * (1 + lean) / lean**2 + 1j) * width * np.cosh(places)
    growth = np.full(_POINTS, -math.inf, dtype=complex)  # exp of it is 0
    rows = max(1, _MAX_LOGARITHMS // _SLICES)
    for begin in range(0, _POINTS, _SLICES):  # it falls along the path
        near = slice(begin, begin + _SLICES)
        growth[near] = 0
        for first in range(0, gaps.size, rows):
            part = slice(first, first + rows)
            growth[near] -= shapes[part] @ np.log1p(-np.multiply.outer(ratios[part], steps[near]))
        if growth[near].real.max() < _NEGLIGIBLE:
            break
    with np.errstate(all="ignore"):
        slices = (np.exp(growth) / -(start + steps) * slopes).imag
    chernoff = -float(shapes @ np.log1p(-start * gaps))  # upper bound of the probability
    whole = float(slices.sum()) * _REACH / _POINTS / math.pi
    return chernoff + (min(0.0, math.log(whole)) if 0 < whole < math.inf else 0.0)


def _saddle(gaps: FloatArray, shapes: FloatArray, deviation: float) -> float:
    """Return the minimum of K below 0, or the usable point nearest to 0."""
    from scipy.optimize import brentq

    def slope(place: float) -> float:
        return float(shapes @ (gaps / (1 - place * gaps)))

    end = 1 / float(gaps.min())  # K is infinite there
    nearest = max(-1 / deviation, end / 2)
    if slope(nearest) <= 0:
        return nearest
    return float(brentq(slope, end * (1 - 1e-13), nearest, xtol=1e-300, rtol=1e-13))
