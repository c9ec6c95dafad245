"""Gaffke's bound of a mean, computed exactly, so that it holds at every level.

The bound (2005; Learned-Miller & Thomas 2019, arXiv 1905.06208) is the point t below which the mean
under random weights (uniform on the simplex) of the values and one more at the worst possible value
lies with probability alpha. Weights are exponential variables over their sum, so that is the chance
that Q = sum (value - t) x exponential is at most 0, and Q has the cumulant function

    K(s) = - sum over the values of ln(1 - s (value - t)).

The chance is the integral of -exp(K(s)) / s over any path to the left of 0, over 2 pi i (Lugannani
& Rice 1980, Advances in Applied Probability 12:475-490). The path here goes through the saddle
point of K and bends as the steepest one does, so that little cancels: with right-or-wrong values
it is the binomial tail to seven digits, at 1e-12 too.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from eval_gates.statistics.comparison import FloatArray

_POINTS, _REACH = 200, 10.0  # of the path, and how far: its ends are sinh(10) widths away
_AT_ONCE = 2_000_000  # logarithms; bounds the memory
_FAR = 3.0  # standard deviations; of a mean so far below 0, nine in ten are below (Cantelli)
_NEAREST = 1e-15  # to the worst value that a bound is looked for
_PRECISION = 1e-12


def lower_bound(values: FloatArray, times: NDArray[np.int_], alpha: float) -> float:
    """The bound that lies above the mean with chance alpha at most; the worst value is -1.

    Args:
        values: distinct, in [-1, 1], at least two; shape [d].
        times: how often each came, shape [d].
        alpha: in (0, 0.5).
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
    """Natural log of the chance that the weighted mean of the points is at most the bound.

    Args:
        points: shape [d].
        shapes: of the weights before they are divided by their sum, which are gamma; shape [d].
        bound: 0 is returned where the chance is above nine in ten.
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
    # Up the path from the saddle point: the other half is its mirror image. It bends as the
    # steepest one does there, and no further than half a right angle, whatever lies beyond.
    places = (np.arange(_POINTS) + 0.5) * (_REACH / _POINTS)
    height = width * np.sinh(places)
    lean = 1 + abs(bend) * height
    steps = bend * height**2 / lean + 1j * height
    slopes = (bend * height * (1 + lean) / lean**2 + 1j) * width * np.cosh(places)
    growth = np.zeros(_POINTS, dtype=complex)
    rows = max(1, _AT_ONCE // _POINTS)
    for first in range(0, gaps.size, rows):
        part = slice(first, first + rows)
        growth -= shapes[part] @ np.log1p(-np.multiply.outer(ratios[part], steps))
    with np.errstate(all="ignore"):
        slices = (np.exp(growth) / -(start + steps) * slopes).imag
    most = -float(shapes @ np.log1p(-start * gaps))  # Chernoff: the chance is no larger
    whole = float(slices.sum()) * _REACH / _POINTS / math.pi
    return most + (min(0.0, math.log(whole)) if 0 < whole < math.inf else 0.0)


def _saddle(gaps: FloatArray, shapes: FloatArray, deviation: float) -> float:
    """Where K is least, below 0; not nearer to it than the path may come."""
    from scipy.optimize import brentq

    def slope(place: float) -> float:
        return float(shapes @ (gaps / (1 - place * gaps)))

    end = 1 / float(gaps.min())  # K is infinite there
    nearest = max(-1 / deviation, end / 2)
    if slope(nearest) <= 0:
        return nearest
    return float(brentq(slope, end * (1 - 1e-13), nearest, xtol=1e-300, rtol=1e-13))
