"""Tokens per solved task, variant over baseline: a test of a ratio of ratios of means.

For problem i, T is the mean number of its answers' tokens and S the share of them that solve it. A
side's cost is E[T] / E[S]. The null hypothesis is

    R = (E[T_c] / E[S_c]) / (E[T_b] / E[S_b]) >= r.

Let c be the baseline's cost. As E[T_b] = c E[S_b], the null hypothesis is the same as

    E[T_c - r T_b + r c (S_b - S_c)] >= 0:

a task that the variant no longer solves is charged r c tokens. For a known c this is the mean of
one bounded number per problem, and Gaffke's bound tests it. Health economics calls it the net
benefit of a cost-effectiveness ratio (Stinnett & Mullahy 1998, Medical Decision Making 18:S68-S80).
Nothing is divided by an observed mean, and the value's variance is that of the delta method, so
little power is lost.

The price c is not known. A confidence interval of level 1 - beta contains it, and the p-value is
the largest over the interval, plus beta (Berger & Boos 1994, JASA 89:1012-1016). The interval
inverts Gaffke's test of E[T_b - c S_b] = 0; its upper end is infinite if the baseline solves too
little. The value is linear in c. So what rejects at both ends of the interval rejects inside of it,
up to the chance that only one of two nearly equal values is negative; the middle is tested too.

All means are bounded by the cap on an answer's tokens. An answer that no problem showed may be as
long, which keeps the error rate for rare endless answers. A bound by t or by bootstrap does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from statistics import NormalDist
from typing import TYPE_CHECKING, Literal

from eval_gates.statistics.gaffke import log_chance_below
from eval_gates.statistics.paired import normal_quantile

if TYPE_CHECKING:
    from eval_gates.statistics.comparison import FloatArray

PRICE_SHARE = 0.1
"""Share of the error rate for the interval of the baseline's cost."""

_PRECISION = 1e-3  # of the ends of intervals, relative
_FARTHEST = 1e4  # a factor; ends that are farther from the estimate count as infinite, or 0


@dataclass(frozen=True)
class Work:
    """One side's answers to the same problems as the other side's.

    Args:
        tokens: mean completion tokens per problem, shape [n], in [0, cap].
        solved: mean score per problem, shape [n], in [0, 1].
        cap: largest possible number of tokens of an answer.
    """

    tokens: FloatArray
    solved: FloatArray
    cap: float

    def __post_init__(self) -> None:
        import numpy as np

        if self.tokens.ndim != 1 or self.tokens.shape != self.solved.shape or not self.tokens.size:
            raise ValueError("tokens and solved need one number per problem, and at least one")
        if not np.all((self.solved >= 0) & (self.solved <= 1)):  # also refuses NaN
            raise ValueError("the share solved must be present and in [0, 1]")
        if not np.all((self.tokens >= 0) & (self.tokens <= self.cap)):
            raise ValueError(f"the tokens of an answer must be present and in [0, {self.cap:g}]")

    @cached_property
    def cost(self) -> float:
        """Tokens per solved task; infinite if none was solved."""
        solved = float(self.solved.sum())
        return float(self.tokens.sum()) / solved if solved > 0 else math.inf

    def cost_interval(self, beta: float) -> tuple[float, float]:
        """Return bounds of E[T] / E[S], each wrong with probability at most beta."""
        start = min(max(self.cost, 1 / _FARTHEST), self.cap * self.tokens.size)
        spread = relative_error(self.tokens / start - self.solved, self.solved)
        low = _find_end(
            lambda step: _chance(start / step * self.solved - self.tokens, start / step),
            beta,
            spread,
        )
        high = _find_end(
            lambda step: _chance(self.tokens - start * step * self.solved, self.cap), beta, spread
        )
        return start / low, start * high


@dataclass(frozen=True)
class CostTest:
    """Outcome of the test of 'the variant needs r times as many tokens per solved task, or more'.

    `lower` and `upper` are one-sided bounds of the ratio at the test's level, 0 and infinite if
    there is none; `p_value` is valid for that level.
    """

    verdict: Literal["pass", "fail", "open"]
    ratio: float | None
    lower: float
    upper: float
    p_value: float


def run_cost_test(baseline: Work, candidate: Work, max_ratio: float, alpha: float) -> CostTest:
    """Test whether the variant's tokens per solved task are below `max_ratio` of the baseline's.

    Args:
        max_ratio: r, above 0.
        alpha: error rate of a pass, of a fail, and of each bound.
    """
    if not 0 < alpha < 0.5:
        raise ValueError(f"alpha, the error rate, must be in (0, 0.5), not {alpha}")
    if not max_ratio > 0:
        raise ValueError(f"max_ratio must be above 0, not {max_ratio}")
    if baseline.tokens.shape != candidate.tokens.shape:
        raise ValueError(
            f"{baseline.tokens.size} and {candidate.tokens.size} problems are not paired"
        )
    cheaper = CostClaim(baseline, candidate, alpha)
    dearer = CostClaim(candidate, baseline, alpha)
    is_finite = 0 < baseline.cost < math.inf and candidate.cost < math.inf
    passes = cheaper.holds(max_ratio)
    return CostTest(
        verdict="pass" if passes else "fail" if dearer.holds(1 / max_ratio) else "open",
        ratio=candidate.cost / baseline.cost if is_finite else None,
        lower=1 / dearer.bound(),
        upper=cheaper.bound(),
        p_value=cheaper.p_value(max_ratio),
    )


@dataclass(frozen=True)
class CostClaim:
    """The claim that `other` has a lower cost than a multiple of the cost of `reference`."""

    reference: Work
    other: Work
    alpha: float

    def holds(self, ratio: float) -> bool:
        """Return whether 'at least `ratio` times the cost' is rejected at level alpha."""
        level = self.alpha - self._beta
        if self._chance_at(ratio, self.reference.cost) > level:
            return False  # saves the interval
        return max(self._chance_at(ratio, price) for price in self._prices) <= level

    def p_value(self, ratio: float) -> float:
        """Return the p-value of 'at least `ratio` times the cost'; it is at least beta."""
        prices = (*self._prices, self.reference.cost)
        return min(1.0, self._beta + max(self._chance_at(ratio, price) for price in prices))

    def bound(self) -> float:
        """Return the smallest ratio that is rejected; infinite if none is."""
        if self.reference.cost == math.inf or self.other.cost == math.inf:
            return math.inf
        start = max(self.other.cost, 1 / _FARTHEST) / max(self.reference.cost, 1 / _FARTHEST)
        values = self._values(start, self.reference.cost)
        error = relative_error(values / start, self.reference.tokens)
        return start * _find_end(lambda step: self.p_value(start * step), self.alpha, error)

    @property
    def _beta(self) -> float:
        return PRICE_SHARE * self.alpha

    @cached_property
    def _prices(self) -> tuple[float, float]:
        return self.reference.cost_interval(self._beta / 2)

    def _values(self, ratio: float, price: float) -> FloatArray:
        saved = self.reference.solved - self.other.solved
        return self.other.tokens - ratio * (self.reference.tokens - price * saved)

    def _chance_at(self, ratio: float, price: float) -> float:
        if price == math.inf:
            return _chance(self.reference.solved - self.other.solved, 1.0)
        return _chance(self._values(ratio, price), self.other.cap + ratio * price)


def min_problems(baseline: Work, cap: float, max_ratio: float, alpha: float) -> int | None:
    """Return how many problems can pass if the variant answers as the baseline does.

    It is a lower bound, taken at the baseline's observed cost; None if no number suffices.

    Args:
        cap: the variant's, of tokens.
    """
    gain = (max_ratio - 1) * float(baseline.tokens.mean())
    if gain <= 0 or baseline.cost == math.inf:
        return None
    share = gain / (cap + max_ratio * baseline.cost)
    return math.ceil(-math.log((1 - PRICE_SHARE) * alpha) / math.log1p(share) - 1e-9)


def relative_error(values: FloatArray, unit: FloatArray) -> float:
    """Return the standard error of the values' mean over the mean of `unit`."""
    mean = float(unit.mean())
    return float(values.std()) / (mean * math.sqrt(values.size)) if mean > 0 else 1.0


def _chance(values: FloatArray, largest: float) -> float:
    """Return Gaffke's p-value of 'the mean is at least 0' for values of at most `largest`."""
    import numpy as np

    if largest <= 0:
        return 1.0
    points = np.append(-values, -largest) / largest
    return math.exp(log_chance_below(points, np.ones(points.size), 0.0))


def _find_end(chance: Callable[[float], float], level: float, error: float) -> float:
    """Return the smallest factor above 1 from which the chance is at most `level`, rounded up.

    Args:
        chance: falls with the factor.
        error: relative standard error, where the search begins.
    """
    from scipy.optimize import brentq

    quantile = normal_quantile(level)

    @cache
    def excess(step: float) -> float:  # nearly linear
        found = min(max(chance(math.exp(step)), 1e-300), 1 - 1e-9)
        return quantile + NormalDist().inv_cdf(found)

    low, high = 0.0, max(1.1 * quantile * error, 10 * _PRECISION)
    while excess(high) > 0:
        low, high = high, 1.5 * high
        if high > math.log(_FARTHEST):
            return math.inf
    if low == 0.0 and excess(low) <= 0:
        return 1.0
    return math.exp(float(brentq(excess, low, high, xtol=_PRECISION / 2)) + _PRECISION / 2)
