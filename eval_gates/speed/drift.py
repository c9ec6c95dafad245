"""Drift check: a trend by which earlier blocks or rounds do not predict later ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eval_gates.speed.proportion_test import FloatArray

LEVEL = 0.2
"""Level of Kendall's test.

It is large because few values show little, and waiting for one more value costs little.
"""

MAX_COMPARED_VALUES = 50
"""Values that are compared; more are replaced by medians of as many stretches."""


def would_reverse(margins: FloatArray) -> bool:
    """Return whether the margins fall and would reach zero if the trend continued.

    Kendall's one-sided test of order against time must reject at `LEVEL`. Twice the fall between
    the medians of both halves must exceed the later median.

    Args:
        margins: of one run, in the order of measuring, [n], finite.
    """
    import numpy as np

    if margins.size < 2:
        return False
    before, now = half_medians(margins)
    if now + 2 * (now - before) > 0:
        return False
    stretches = np.array_split(margins, min(MAX_COMPARED_VALUES, margins.size))
    return kendall_p_value(np.array([np.median(each) for each in stretches])) <= LEVEL


def kendall_p_value(values: FloatArray) -> float:
    """Return the exact p-value of Kendall's test against a falling trend.

    It is the probability of at least as many falling pairs in random order (Kendall 1938,
    Biometrika 30:81-93). A tie does not fall. Cost: O(n^2). The server's environment lacks scipy.
    """
    import numpy as np

    size = values.size
    falls = int(np.triu(values[None, :] < values[:, None], 1).sum())
    chances = np.ones(1)  # of 0, 1, 2 ... falls among the first one, two ... values
    for number in range(2, size + 1):
        chances = np.convolve(chances, np.full(number, 1 / number))
    return float(chances[falls:].sum())


def half_medians(values: FloatArray) -> tuple[float, float]:
    """Return the medians of the earlier and the later half."""
    import numpy as np

    half = values.size // 2
    return float(np.median(values[:half])), float(np.median(values[-half:]))
