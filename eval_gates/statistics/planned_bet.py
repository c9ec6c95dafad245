"""Planned bet, which grows fastest if answers flip as expected and nothing is lost.

It follows from the margin and the expected answers by Kelly's criterion. It does not depend on the
number of questions, so a gate that continues keeps its bet.
"""

from __future__ import annotations

import math

from eval_gates.statistics.comparison import Comparison
from eval_gates.statistics.simulation import outcomes

_SHARES = tuple(hundredth / 100 for hundredth in range(1, 99))


def planned_bet(
    comparison: Comparison, flips: float, flip_size: float, baseline: float = 1.0
) -> float:
    """Return the best share of the largest legal bet against 'inferior', in hundredths."""
    expected = outcomes(comparison, flips, flip_size, 0.0, baseline)
    legal = comparison.threshold - comparison.lowest
    gains = [(value - comparison.threshold) / legal for value in expected.values]

    def growth(share: float) -> float:
        return sum(
            chance * math.log1p(share * gain)
            for chance, gain in zip(expected.chances, gains, strict=True)
        )

    return max(_SHARES, key=growth)
