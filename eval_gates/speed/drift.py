"""Whether what is measured goes somewhere: then the blocks or rounds so far are not the next ones.

A server that warms up, fills its memory or heats up is not the server of an hour later, and no
test of values that are taken to be of one kind says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eval_gates.speed.share import FloatArray

LEVEL = 0.2
"""Of Kendall's test: chance that values without a trend show one. Large, since few values show
little, and a decision that waits for another one costs little."""


def undoes(margins: FloatArray) -> bool:
    """Whether margins fall, and would end at or below zero if they went on for as long again.

    They fall by Kendall's test of order against time (scipy's, one-sided, at `LEVEL`), and by so
    much that twice the change from the earlier half's median to the later half's leaves nothing of
    the later one.

    Args:
        margins: of one run in the order of measuring, [n] with n of at least 2, finite.
    """
    import numpy as np
    from scipy.stats import kendalltau

    before, now = medians_of_halves(margins)
    if now + 2 * (now - before) > 0:
        return False
    order = kendalltau(np.arange(margins.size), margins, alternative="less")
    return bool(order.pvalue <= LEVEL)


def medians_of_halves(values: FloatArray) -> tuple[float, float]:
    """Of the earlier half and of the later one; of an odd number the middle is in neither."""
    import numpy as np

    half = values.size // 2
    return float(np.median(values[:half])), float(np.median(values[-half:]))
