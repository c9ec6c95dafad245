"""Gaffke's bound of a mean, computed exactly, so that it holds at every level.

The bound (2005; Learned-Miller & Thomas 2019, arXiv 1905.06208) weights the values, and one more at
the worst possible value, uniformly on the simplex. It is the point t below which this weighted mean
lies with probability alpha. This is P(Q <= 0) for Q = sum (value - t) x exponential variable, with
the cumulant function

K(s) = - sum over the values of ln(1 - s (value - t)).

P(Q <= 0) is the integral of -exp(K(s)) / s over any path to the left of 0, divided by 2 pi i
(Lugannani & Rice 1980, Advances in Applied Probability 12:475-490). The path here goes through the
saddle point of K.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eval_gates.statistics.comparison import FloatArray

_POINTS, _REACH = 200, 10.0  # points of the path; its ends are sinh(10) widths away
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

    points, shapes = np.append(values, -1.0), np.append(times, 1).astype(float)

    def excess(bound: float) -> float:
        return log_chance_below(points, shapes, bound) - math.log(alpha)

    lowest, highest = -1 + _NEAREST, float(values.max())
    if excess(lowest) >= 0:
        return -1.0
    return float(brentq(excess, lowest, highest, xtol=_PRECISION))


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
    growth = np.zeros(_POINTS, dtype=complex)
    rows = max(1, _MAX_LOGARITHMS // _POINTS)
    for first in range(0, gaps.size, rows):
        part = slice(first, first + rows)
        growth -= shapes[part] @ np.log1p(-np.multiply.outer(ratios[part], steps))
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
