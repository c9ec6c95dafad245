"""Error rates of several variants.

Each variant gets alpha / K (Bonferroni), which needs no independence.
"""

from __future__ import annotations


def gate_level(alpha: float, attempts: int | None, variants: int) -> float:
    """Return the level of one variant's gate; all levels are computed here.

    Args:
        attempts: number of attempts that share alpha; None where each has all of it.
        variants: of the attempt.
    """
    return alpha / (attempts or 1) / variants
