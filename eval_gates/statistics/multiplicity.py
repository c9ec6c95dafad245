"""Error rates when several gates, or several variants, are judged at once.

**Several gates of one variant** need no correction. The variant is promoted only if all its gates
pass, so a wrong promotion needs the truly inferior gate to pass wrongly, which happens with
probability at most alpha whatever the others do (intersection-union test; Berger 1982,
Technometrics 24:295-300). Its p-value is the largest of the gates'.

**Several variants** do: each is one more chance of a lucky pass, and with K inferior ones the
chance that at least one is promoted nears K * alpha. Each has alpha / K (Bonferroni), which needs
no independence: variants share their questions and their baseline. Holm's procedure would give the
second one to pass more, but sequential gates stop at the strictest level, so it gained nothing
unless questions ran out, and a verdict would depend on the others' p-values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from recipes.policy import Attempts

FIRST_MEASUREMENT = 0.9
"""The share of an attempt's rate that the first measurement of a gate has."""


def all_gates_p(p_values: Mapping[str, float]) -> float:
    """The p-value of 'at least one of these gates is truly inferior': the largest one."""
    _check(p_values)
    if not p_values:
        raise ValueError("no gates: nothing was shown")
    return max(p_values.values())


def attempt_share(spending: Attempts, number: int) -> float:
    """The share of the policy's alpha that one attempt has.

    Args:
        spending: per_run: each attempt has all of it; spend: all attempts together, so the first
            has a half, and attempt k has 0.5 / (k (k - 1)), which sums to 1.
        number: of the attempt, from 1 on.
    """
    return 1.0 if spending == "per_run" else _spent(0.5, number)


def bound_over_attempts(alpha: float, spending: Attempts, number: int) -> float:
    """What bounds the chance that any of so many attempts passes falsely (union bound)."""
    return min(1.0, number * alpha) if spending == "per_run" else alpha


def level_of(
    alpha: float, spending: Attempts, number: int, variants: int, *, measurement: int = 1
) -> float:
    """The level that one variant's gate is decided at; every level is computed here.

    An attempt's rate is shared out among its variants, evenly, and among the measurements of a
    gate: nine tenths for the first, and 0.1 / (n (n - 1)) for the n-th, which sums to 1. So what is
    measured again has its chance, and the attempt keeps its rate. Gates need no share (see above).

    Args:
        alpha: the policy's error rate.
        spending: the policy's `attempts`.
        number: of the attempt.
        variants: of the attempt.
        measurement: number of the gate's measurement.
    """
    rate = alpha * attempt_share(spending, number)
    return rate * _spent(FIRST_MEASUREMENT, measurement) / variants


def _spent(first: float, number: int) -> float:
    if number < 1:
        raise ValueError(f"numbers begin with 1, not {number}")
    return first if number == 1 else (1 - first) / (number * (number - 1))


def _check(p_values: Mapping[str, float]) -> None:
    for name, p in p_values.items():
        if not 0 <= p <= 1:  # also refuses NaN
            raise ValueError(f"{name}: a p-value must be in [0, 1], not {p}")
