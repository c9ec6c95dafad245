"""Whether something happens in more than a share of all cases: a bet on each, after any of them.

The bet of eval_gates/statistics/betting.py on values of 0 and 1. Who stakes the share b of all he
has on 'it happens' has 1 + b (1 / share - 1) times as much where it does, and 1 - b where not: if
it happens in at most that share of cases, given all before, his wealth does not grow on average,
and by Ville's inequality it ever reaches 1 / alpha with probability at most alpha. Nothing is
assumed of sizes: no variance, no symmetry, no distribution.

A claim about the typical value is such a share: half of all values lie above a number.
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
"""Bets, as shares of the largest legal one, and what is staked on each of all at the beginning.

Chosen once by calculation: most lies where what always happens is seen soonest (of a share of one
half after 5 cases at 5 % and at its share for a first trial, 6 at half of that, 8 at 1 %), the rest
where it happens in three of four, or of five.
"""

FIRST_RUN = 0.97
"""What is staked from the first unit on. A run that continues a measurement after disturbances
begins a bet of its own: the k-th run has 0.03 / (k (k - 1)) of all, so what was disturbed before
costs it some units and not all chance. The sum is one bet, as valid as each."""

_PRECISION = 1e-9


def log_evidence(happened: NDArray[Any], share: float, continued: Sequence[int] = ()) -> FloatArray:
    """Natural log of the evidence that it happens in more than that share of cases.

    Args:
        happened: 0 and 1 or booleans, [..., n]; each row is a run of its own, in its order.
        share: in (0, 1).
        continued: the first case of each later run that continued the measurement.

    Returns:
        after each case: [..., n].
    """
    import numpy as np

    cash = 1 - FIRST_RUN
    total = math.log(FIRST_RUN) + _log_evidence(happened, share)
    for run, start in enumerate(continued, start=2):
        stake = (1 - FIRST_RUN) / (run * (run - 1))
        cash -= stake
        of_run = np.zeros(happened.shape)
        of_run[..., start:] = _log_evidence(happened[..., start:], share)
        np.logaddexp(total, math.log(stake) + of_run, out=total)
    return np.asarray(np.logaddexp(total, math.log(cash)))


def _log_evidence(happened: NDArray[Any], share: float) -> FloatArray:
    """The same of one run."""
    import numpy as np

    did = np.cumsum(happened, axis=-1, dtype=float)
    did_not = np.arange(1, happened.shape[-1] + 1) - did
    total = np.full(happened.shape, -np.inf)
    for bet, stake in STAKES.items():
        wealth = did * math.log1p(bet * (1 / share - 1)) + did_not * math.log1p(-bet)
        np.logaddexp(total, math.log(stake) + wealth, out=total)
    return total


def surely_more_than(happened: NDArray[Any], alpha: float, continued: Sequence[int] = ()) -> float:
    """The share that it surely happens in more than: wrong, after any case, with chance alpha.

    Args:
        happened: of one run, [n].
        alpha: error rate.
        continued: as of `log_evidence`.
    """
    low, high = 0.0, 1.0
    while high - low > _PRECISION:
        half = (low + high) / 2
        low, high = (half, high) if _rejects(happened, half, alpha, continued) else (low, half)
    return low


def surely_typical(values: FloatArray, alpha: float, continued: Sequence[int] = ()) -> float:
    """What half of all values surely lie above: wrong, after any value, with chance alpha.

    Of the values themselves, the smallest that is not rejected; -inf where they are too few.

    Args:
        values: of one run, [n].
        alpha: error rate.
        continued: as of `log_evidence`.
    """
    import numpy as np

    candidates = np.unique(values)

    def rejected(value: float) -> bool:
        return _rejects(values > value, 0.5, alpha, continued)

    if not rejected(-math.inf):
        return -math.inf
    # Each value above one that is not rejected is not rejected, either.
    return float(candidates[bisect_left(candidates, True, key=lambda each: not rejected(each))])


def _rejects(happened: NDArray[Any], share: float, alpha: float, continued: Sequence[int]) -> bool:
    """Whether the evidence has ever been enough."""
    return bool(log_evidence(happened, share, continued).max(initial=-math.inf) >= -math.log(alpha))
