"""Error rates of several variants: alpha / K each (Bonferroni)."""

from __future__ import annotations


def gate_level(alpha: float, attempts: int | None, variants: int) -> float:
    """Return the level of one variant's gate; all are computed here.

    `attempts` share alpha; None: each has all of it.
    """
    return alpha / (attempts or 1) / variants
