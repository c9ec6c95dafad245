"""Error rates of several gates, and of several variants.

**Several gates of one variant** need no correction, because promotion requires all of them
(intersection-union test; Berger 1982, Technometrics 24:295-300). The p-value is the gates' largest.

**Several variants** need one: each gets alpha / K (Bonferroni), which needs no independence.
"""

from __future__ import annotations

from collections.abc import Mapping


def largest_p_value(p_values: Mapping[str, float]) -> float:
    """Return the p-value of 'at least one of these gates is truly inferior'."""
    _check(p_values)
    if not p_values:
        raise ValueError("there are no gates")
    return max(p_values.values())


def gate_level(alpha: float, attempts: int | None, variants: int) -> float:
    """Return the level of one variant's gate; all levels are computed here.

    Args:
        attempts: number of attempts that share alpha; None where each has all of it.
        variants: of the attempt.
    """
    return alpha / (attempts or 1) / variants


def _check(p_values: Mapping[str, float]) -> None:
    for name, p in p_values.items():
        if not 0 <= p <= 1:  # also refuses NaN
            raise ValueError(f"{name}: a p-value must be in [0, 1], not {p}")
