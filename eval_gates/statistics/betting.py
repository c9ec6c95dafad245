"""E-process of every sequential gate: the wealth of a fixed set of bets.

Source: Waudby-Smith & Ramdas, 'Estimating means of bounded random variables by betting' (arXiv
2010.09686). Take values y >= 0 and the hypothesis that their mean is at most m. A gambler who
stakes the share b of his wealth multiplies it by 1 - b + b * y / m at each value. Under the
hypothesis his expected wealth does not grow. By Ville's inequality it ever reaches 1 / alpha with
probability at most alpha, so stopping is valid after any value.

b = 1 is the largest legal bet: wealth stays >= 0 down to y = 0. The best share depends on the
unknown share of flips, so the stake is split evenly over twelve shares. The e-process is the sum. A
planned bet gets half of the stake, and the twelve shares the other half. Any split that is fixed
before the first value is valid; a wrong plan costs at most a factor of two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from eval_gates.statistics.comparison import FloatArray

SMALLEST_BET, LARGEST_BET, NUMBER_OF_BETS = 0.08, 0.98, 12

RELATIVE_TOLERANCE = 1e-9
"""Share of a benchmark's summed scores below which floating point does not decide."""


def bets() -> FloatArray:
    """Return the evenly staked shares of the largest legal bet, log-spaced: shape [12].

    The range comes from simulations of 0 % to 10 % flips; any range is valid.
    """
    import numpy as np

    return np.geomspace(SMALLEST_BET, LARGEST_BET, NUMBER_OF_BETS)


def mix(logs: FloatArray, planned: float | None) -> FloatArray:
    """Return the log of the total wealth of the bets of :func:`stake`: [..., bets] to [...]."""
    import numpy as np

    largest = logs.max(axis=-1)
    shares = np.exp(logs - largest[..., None])
    even = shares[..., :NUMBER_OF_BETS].mean(axis=-1)
    whole = even if planned is None else (even + shares[..., -1]) / 2
    return np.asarray(largest + np.log(whole))


def stake(planned: float | None) -> FloatArray:
    """Return the bets that have a stake: the even ones, then the planned one."""
    import numpy as np

    if planned is None:
        return bets()
    if not 0 < planned < 1:
        raise ValueError(f"a planned bet is a share of the largest legal one, not {planned}")
    return np.append(bets(), planned)


def log_wealth(
    heights: FloatArray,
    mean: float,
    population: int | None = None,
    planned: float | None = None,
) -> FloatArray:
    """Return the natural log of the e-process against 'the mean height is at most `mean`'.

    Args:
        heights: distance of each value from the smallest possible one, >= 0; shape [..., n], each
            row a separate run in random order. The result has the same shape.
        mean: the largest mean height under the hypothesis, > 0.
        population: size of the finite population, drawn without replacement. Each bet is then
            against the largest mean left for the unseen values. A negative one refutes the
            hypothesis: the log is infinite.
    """
    import numpy as np

    if population is None:
        ratio, refuted = heights / mean, None
    else:
        ratio, refuted = _ratios_without_replacement(heights, mean, population)
    total = None
    for number, bet in enumerate(stake(planned)):
        earned = np.cumsum(np.log1p(bet * (ratio - 1)), axis=-1)
        total = earned if total is None else np.logaddexp(total, earned, out=total)
        if number == NUMBER_OF_BETS - 1:
            total -= np.log(NUMBER_OF_BETS)
    assert total is not None
    if planned is not None:
        total -= np.log(2)
    if refuted is not None:
        total[refuted] = np.inf
    return np.asarray(total)


def _ratios_without_replacement(
    heights: FloatArray, mean: float, population: int
) -> tuple[FloatArray, NDArray[np.bool_]]:
    import numpy as np

    n = heights.shape[-1]
    tolerance = RELATIVE_TOLERANCE * population
    seen = np.cumsum(heights, axis=-1)
    left_after = population * mean - seen
    left = np.empty_like(left_after)
    left[..., 0] = population * mean
    left[..., 1:] = left_after[..., :-1]
    unseen = population - np.arange(n)
    betting = left > tolerance  # with nothing left there is no legal bet
    ratio = np.where(betting, heights * unseen / np.where(betting, left, 1.0), 1.0)
    return ratio, left_after < -tolerance
