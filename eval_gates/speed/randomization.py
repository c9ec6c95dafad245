"""What chance decides of a measurement: each block's prompts, and which side goes first.

All of it follows from one seed, which the stage keeps. So kept blocks show whether they are all
that were measured, in that order: one that was left out, moved or put in has another's seed.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

SIDES = ("baseline", "candidate")


class Randomization:
    """The draws of one measurement, in order.

    Args:
        seed: of all of them.
        sides: that are measured, the baseline first where there is one.
    """

    def __init__(self, seed: int, sides: Iterable[str]) -> None:
        self._chance = random.Random(seed)  # noqa: S311  # traffic, no secret
        self._sides = list(sides)

    def look(self) -> int:
        """The seed of a load that counts for nothing."""
        return self._chance.getrandbits(32)

    def unit(self) -> tuple[int, list[str]]:
        """The seed of the next block or round, and its sides in the order of measuring."""
        seed = self._chance.getrandbits(32)
        self._chance.shuffle(self._sides)
        return seed, list(self._sides)
