"""Error rates when several gates, or several variants, are judged at once.

**Several gates of one variant** need no correction. The variant is promoted only if all its gates
pass, so a wrong promotion needs the truly inferior gate to pass wrongly, which happens with
probability at most alpha whatever the others do (intersection-union test; Berger 1982,
Technometrics 24:295-300). Its p-value is the largest of the gates'.

**Several variants** do: each is one more chance of a lucky pass, and with K inferior ones the
chance that at least one is promoted nears K * alpha. Holm's procedure (1979, Scandinavian Journal
of Statistics 6:65-70) keeps it at alpha, and needs no independence: variants share their questions
and their baseline. The p-values of sequential gates are valid at whatever question each stopped.
"""

from __future__ import annotations

from collections.abc import Mapping

# Of the error rate, to the first trial.
FIRST_SHARE = 0.9


def all_gates_p(p_values: Mapping[str, float]) -> float:
    """The p-value of 'at least one of these gates is truly inferior': the largest one."""
    _check(p_values)
    if not p_values:
        raise ValueError("no gates: nothing was shown")
    return max(p_values.values())


def holm(p_values: Mapping[str, float], alpha: float) -> dict[str, bool]:
    """Which variants pass, such that any false pass among them has probability at most alpha."""
    if not 0 < alpha < 1:
        raise ValueError(f"alpha, the error rate, must be in (0, 1), not {alpha}")
    return {name: p <= alpha for name, p in holm_adjusted(p_values).items()}


def holm_adjusted(p_values: Mapping[str, float]) -> dict[str, float]:
    """Holm's adjusted p-values, in the order given: to be compared with the family's alpha.

    The smallest of K is multiplied by K, the next by K - 1 and so on; none may be smaller than the
    one before it, nor larger than 1.
    """
    _check(p_values)
    adjusted: dict[str, float] = {}
    largest = 0.0
    for rank, name in enumerate(sorted(p_values, key=lambda name: p_values[name])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[name]))
        adjusted[name] = largest
    return {name: adjusted[name] for name in p_values}


def share_of(number: int | None) -> float:
    """A trial's share of the policy's error rate.

    Args:
        number: from 1 on; None for verdicts from before trials were counted, which had all of it.
    """
    if number is None:
        return 1.0
    return FIRST_SHARE if number == 1 else (1 - FIRST_SHARE) / (number * (number - 1))


def level_of(alpha: float, tried: int, number: int | None = None) -> float:
    """The error rate at which asking stops: that of Holm's first step, the strictest.

    Args:
        number: of the trial that they are, which has a share of alpha only (`trials.py`); None
            for a verdict from before trials were counted.
    """
    return alpha * share_of(number) / tried


def _check(p_values: Mapping[str, float]) -> None:
    for name, p in p_values.items():
        if not 0 <= p <= 1:  # also refuses NaN
            raise ValueError(f"{name}: a p-value must be in [0, 1], not {p}")
