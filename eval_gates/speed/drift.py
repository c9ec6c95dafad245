"""Whether what is measured goes somewhere: then the blocks or rounds so far are not the next ones.

A server that warms up, fills its memory or heats up is not the server of an hour later, and no
test of values that are taken to be of one kind says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eval_gates.speed.proportion_test import FloatArray

LEVEL = 0.2
"""Of Kendall's test: chance that values without a trend show one. Large, since few values show
little, and a decision that waits for another one costs little."""

MOST = 50
"""Values that are compared with each other; of more, medians of so many stretches."""


def undoes(margins: FloatArray) -> bool:
    """Whether margins fall, and would end at or below zero if they went on for as long again.

    They fall by Kendall's test of order against time (one-sided, at `LEVEL`), and by so much that
    twice the change from the earlier half's median to the later half's leaves nothing of the later
    one.

    Args:
        margins: of one run in the order of measuring, [n], finite; a single one goes nowhere.
    """
    import numpy as np

    if margins.size < 2:
        return False
    before, now = medians_of_halves(margins)
    if now + 2 * (now - before) > 0:
        return False
    stretches = np.array_split(margins, min(MOST, margins.size))
    return chance_of_falls(np.array([np.median(each) for each in stretches])) <= LEVEL


def chance_of_falls(values: FloatArray) -> float:
    """That as many pairs of values fall, or more, where their order is chance: Kendall's test.

    scipy's `kendalltau` has it, but a server's environment, which measures, has no scipy. Exact
    (Kendall 1938, Biometrika 30:81-93); a pair of equal values does not fall. Time and memory grow
    with the square of how many there are.
    """
    import numpy as np

    size = values.size
    falls = int(np.triu(values[None, :] < values[:, None], 1).sum())
    chances = np.ones(1)  # of 0, 1, 2 ... falls among the first one, two ... values
    for number in range(2, size + 1):
        chances = np.convolve(chances, np.full(number, 1 / number))
    return float(chances[falls:].sum())


def medians_of_halves(values: FloatArray) -> tuple[float, float]:
    """Of the earlier half and of the later one; of an odd number the middle is in neither."""
    import numpy as np

    half = values.size // 2
    return float(np.median(values[:half])), float(np.median(values[-half:]))
