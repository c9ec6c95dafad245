"""Error rates of several gates, and of several variants.

**Several gates of one variant** need no correction, because promotion requires all of them. A wrong
promotion needs a truly inferior gate to pass, which has probability at most alpha
(intersection-union test; Berger 1982, Technometrics 24:295-300). The p-value is the gates' largest.

**Several variants** need one: with K inferior variants the probability of a promotion approaches K
times alpha. Each variant gets alpha / K (Bonferroni), which needs no independence. Holm's procedure
gains nothing unless the questions run out, because sequential gates stop at the strictest level.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from recipes.policy import Attempts

FIRST_MEASUREMENT = 0.9
"""Share of an attempt's rate that a gate's first measurement gets."""


def largest_p_value(p_values: Mapping[str, float]) -> float:
    """Return the p-value of 'at least one of these gates is truly inferior'."""
    _check(p_values)
    if not p_values:
        raise ValueError("there are no gates")
    return max(p_values.values())


def attempt_share(spending: Attempts, number: int) -> float:
    """Return the share of the policy's alpha that one attempt gets.

    Args:
        spending: per_run: each attempt gets all of it. spend: attempt 1 gets a half, and attempt k
            gets 0.5 / (k (k - 1)), which sums to 1.
        number: of the attempt, from 1 on.
    """
    return 1.0 if spending == "per_run" else _spent(0.5, number)


def bound_over_attempts(alpha: float, spending: Attempts, number: int) -> float:
    """Return the union bound of a false pass in any of `number` attempts."""
    return min(1.0, number * alpha) if spending == "per_run" else alpha


def gate_level(
    alpha: float, spending: Attempts, number: int, variants: int, *, measurement: int = 1
) -> float:
    """Return the level of one variant's gate; all levels are computed here.

    Variants share the attempt's rate evenly. A gate's first measurement gets nine tenths, and the
    n-th gets 0.1 / (n (n - 1)), which sums to 1.

    Args:
        alpha: the policy's error rate.
        spending: the policy's `attempts`.
        number: of the attempt, from 1 on.
        measurement: number of the gate's measurement, from 1 on.
    """
    rate = alpha * attempt_share(spending, number)
    return rate * _spent(FIRST_MEASUREMENT, measurement) / variants


def _spent(first: float, number: int) -> float:
    if number < 1:
        raise ValueError(f"a number must be at least 1, not {number}")
    return first if number == 1 else (1 - first) / (number * (number - 1))


def _check(p_values: Mapping[str, float]) -> None:
    for name, p in p_values.items():
        if not 0 <= p <= 1:  # also refuses NaN
            raise ValueError(f"{name}: a p-value must be in [0, 1], not {p}")
