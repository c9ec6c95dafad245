"""Test whether an event occurs in more than a given share of cases, valid after each case.

It is the bet of eval_gates/statistics/betting.py on values of 0 and 1. A gambler stakes the share b
of his wealth on the event. The event multiplies his wealth by 1 + b (1 / share - 1), its absence by
1 - b. If the event's probability, given all earlier cases, is at most that share, his expected
wealth does not grow. By Ville's inequality it ever reaches 1 / alpha with probability at most
alpha. The test assumes no variance, symmetry or distribution. A gate on the median has share one
half.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    FloatArray = NDArray[np.float64]

STAKES = {0.98: 0.67, 0.6: 0.22, 0.25: 0.11}
"""Bets, as shares of the largest legal one, and the part of the wealth that each starts with.

Chosen by calculation. Most is on the bet that detects an event that always occurs soonest: for a
share of one half, after 5 cases at 5 % and at its share for a first attempt, 6 at half of that, 8
at 1 %. The rest is for events in three of four cases, or of five.
"""

FIRST_RUN = 0.97
"""Stake of the bet that starts with the first unit.

A run that continues a disturbed measurement starts its own bet: the k-th run gets 0.03 / (k (k -
1)). Earlier disturbances thus cost it some units, not all chances. The sum of valid bets is a valid
bet.
"""

_PRECISION = 1e-9


def log_evidence(happened: NDArray[Any], share: float, continued: Sequence[int] = ()) -> FloatArray:
    """Return the natural log of the evidence after each case: [..., n].

    Args:
        happened: 0 and 1 or booleans, [..., n]; each row is a separate run, in its order.
        share: in (0, 1).
        continued: the first case of each later run that continued the measurement.
    """
    import numpy as np

    cash = 1 - FIRST_RUN
    total = math.log(FIRST_RUN) + _run_log_evidence(happened, share)
    for run, start in enumerate(continued, start=2):
        stake = (1 - FIRST_RUN) / (run * (run - 1))
        cash -= stake
        of_run = np.zeros(happened.shape)
        of_run[..., start:] = _run_log_evidence(happened[..., start:], share)
        np.logaddexp(total, math.log(stake) + of_run, out=total)
    return np.asarray(np.logaddexp(total, math.log(cash)))


def _run_log_evidence(happened: NDArray[Any], share: float) -> FloatArray:
    import numpy as np

    did = np.cumsum(happened, axis=-1, dtype=float)
    did_not = np.arange(1, happened.shape[-1] + 1) - did
    total = np.full(happened.shape, -np.inf)
    for bet, stake in STAKES.items():
        wealth = did * math.log1p(bet * (1 / share - 1)) + did_not * math.log1p(-bet)
        np.logaddexp(total, math.log(stake) + wealth, out=total)
    return total


def proportion_lower_bound(
    happened: NDArray[Any], alpha: float, continued: Sequence[int] = ()
) -> float:
    """Return the anytime-valid lower bound of the event's share at level alpha."""
    low, high = 0.0, 1.0
    while high - low > _PRECISION:
        half = (low + high) / 2
        low, high = (half, high) if _rejects(happened, half, alpha, continued) else (low, half)
    return low


def median_lower_bound(values: FloatArray, alpha: float, continued: Sequence[int] = ()) -> float:
    """Return the anytime-valid lower bound of the median at level alpha.

    It is the smallest value that the test does not reject; -inf if there are too few values.
    """
    import numpy as np

    candidates = np.unique(values)

    def rejected(value: float) -> bool:
        return _rejects(values > value, 0.5, alpha, continued)

    if not rejected(-math.inf):
        return -math.inf
    # Values above one that is not rejected are not rejected either.
    return float(candidates[bisect_left(candidates, True, key=lambda value: not rejected(value))])


def _rejects(happened: NDArray[Any], share: float, alpha: float, continued: Sequence[int]) -> bool:
    return bool(log_evidence(happened, share, continued).max(initial=-math.inf) >= -math.log(alpha))
