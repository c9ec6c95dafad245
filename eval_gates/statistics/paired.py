"""Confidence bounds of the mean paired difference, candidate minus baseline, at a fixed n.

Each question gives one difference. Every bound is one-sided at level alpha: it is on the wrong side
of the true mean with probability about alpha. Both bounds are a two-sided interval of level 1 - 2
alpha.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from eval_gates.statistics.gaffke import lower_bound

TANGO = "tango score"
GRADED = "gaffke's bound"
IDENTICAL = "identical differences"

_TIE = 1e-9


@dataclass(frozen=True)
class PairedInterval:
    """One-sided bounds of a mean difference in score, as fractions: -0.01 is one point lost."""

    lower: float
    upper: float
    method: str


def tango_interval(
    both: int, only_baseline: int, only_candidate: int, neither: int, alpha: float
) -> PairedInterval:
    """Compute Tango's score interval of the difference of paired proportions.

    Tango (1998), Statistics in Medicine 17:891-908. At the bounds, the score statistic equals plus
    and minus the normal quantile, with the nuisance parameter at its constrained maximum
    likelihood. With few flips its error is up to two points above 5 %, so no verdict uses it.
    """
    counts = (both, only_baseline, only_candidate, neither)
    if min(counts) < 0:
        raise ValueError(f"counts of questions cannot be negative: {counts}")
    questions = sum(counts)
    if questions == 0:
        raise ValueError("there are no questions to compare")
    quantile = normal_quantile(alpha)
    lower = _tango_lower_bound(only_candidate, only_baseline, questions, quantile)
    upper = -_tango_lower_bound(only_baseline, only_candidate, questions, quantile)
    return PairedInterval(lower, upper, TANGO)


def graded_interval(differences: Sequence[float], alpha: float) -> PairedInterval:
    """Compute Gaffke's bounds of the mean of graded differences, also for few questions.

    They allow for losses that no question showed, unlike a bootstrap. With equal differences the
    result is :func:`identical_interval`; with right-or-wrong scores it is Clopper and Pearson's.
    Validity for every distribution is a conjecture without a known exception; tests simulate the
    hard ones.

    Args:
        differences: one per question, each in [-1, 1].
        alpha: of each of the two bounds, in (0, 0.5).
    """
    import numpy as np

    values = np.asarray(differences, dtype=float)
    if values.ndim != 1 or values.size == 0:
        raise ValueError("graded_interval needs one difference per question, and at least one")
    if not np.all(np.abs(values) <= 1):  # also refuses NaN
        raise ValueError("differences of scores in [0, 1] must lie in [-1, 1]")
    distinct, times = np.unique(values, return_counts=True)
    return counted_interval(distinct.tolist(), times.tolist(), alpha)


def counted_interval(
    differences: Sequence[float],
    times: Sequence[int],
    alpha: float,
) -> PairedInterval:
    """Compute :func:`graded_interval` from distinct differences and their counts."""
    import numpy as np

    normal_quantile(alpha)
    values, often = np.asarray(differences, dtype=float), np.asarray(times)
    values, often = values[often > 0], often[often > 0]
    # Equal scores can differ by rounding.
    if float(values.max() - values.min()) < 1e-12:
        return identical_interval(float(values.mean()), int(often.sum()), alpha)
    return PairedInterval(
        lower_bound(values, often, alpha), -lower_bound(-values, often, alpha), GRADED
    )


def identical_interval(value: float, questions: int, alpha: float) -> PairedInterval:
    """Compute bounds of a mean in [-1, 1] if all `questions` draws have the same `value`.

    Distribution-free, by inverting a test. If a share r of the population has `value`, all draws
    show it with probability r ** questions. That is at least alpha only for r >= alpha ** (1 /
    questions). The unseen rest may be as bad as -1 or as good as +1. For value 0 this is the exact
    form of the rule of three: 24 equal answers bound the drop at 11.7 points.
    """
    normal_quantile(alpha)
    if questions < 1:
        raise ValueError("there are no questions to compare")
    share = alpha ** (1 / questions)
    return PairedInterval(share * value - (1 - share), share * value + (1 - share), IDENTICAL)


def min_identical_questions(margin: float, alpha: float) -> int:
    """Return how many questions without a change rule out a drop of that margin."""
    # A bound equal to the margin does not rule it out, and 2 may be computed as 1.999...
    return math.floor(math.log(alpha) / math.log1p(-margin) + _TIE) + 1


def normal_quantile(alpha: float) -> float:
    """Return the point that a standard normal exceeds with probability alpha."""
    if not 0 < alpha < 0.5:
        raise ValueError(f"alpha, the error rate of a bound, must be in (0, 0.5), not {alpha}")
    return NormalDist().inv_cdf(1 - alpha)


def _tango_lower_bound(gains: int, losses: int, questions: int, quantile: float) -> float:
    from scipy.optimize import brentq

    if losses == questions:
        return -1.0

    def excess(difference: float) -> float:
        # distance / sqrt(variance) = quantile, squared and written as a share. The statistic
        # itself is infinite or 0/0 at zero variance (no flips, all flips, -1).
        distance = gains - losses - questions * difference
        if distance <= 0:
            return -0.5
        discordant = _constrained_discordance(gains, losses, questions, difference)
        variance = max(questions * (discordant - difference**2), 0.0)
        return distance**2 / (distance**2 + quantile**2 * variance) - 0.5

    return float(brentq(excess, -1.0, (gains - losses) / questions, xtol=1e-12))


def _constrained_discordance(gains: int, losses: int, questions: int, difference: float) -> float:
    """Return the likeliest P(gain) + P(loss), given that P(gain) - P(loss) is `difference`.

    With q the smaller probability, it takes the larger root of the likelihood equation 2 n q^2 + w
    q - (rarer) |difference| (1 - |difference|) = 0.
    """
    size = abs(difference)
    commoner, rarer = (gains, losses) if difference >= 0 else (losses, gains)
    linear = -(commoner + rarer) + (2 * questions - commoner + rarer) * size
    constant = rarer * size * (1 - size)
    root = math.sqrt(linear**2 + 8 * questions * constant)
    # One root in two forms, so that nearly equal numbers are never subtracted.
    smaller = (root - linear) / (4 * questions) if linear <= 0 else 2 * constant / (root + linear)
    return 2 * smaller + size
