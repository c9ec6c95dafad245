"""Randomization of a measurement: the prompts of each block, and the order of its sides.

All choices follow from one recorded seed, so verification detects an omitted, moved or added block.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

SIDES = ("baseline", "candidate")


class Randomization:
    """Random choices of one measurement, in order."""

    def __init__(self, seed: int, sides: Iterable[str]) -> None:
        self._chance = random.Random(seed)  # noqa: S311  # traffic, no secret
        self._sides = list(sides)

    def next_probe(self) -> int:
        return self._chance.getrandbits(32)

    def next_unit(self) -> tuple[int, list[str]]:
        """Return the next unit's seed, and its sides in order."""
        seed = self._chance.getrandbits(32)
        self._chance.shuffle(self._sides)
        return seed, list(self._sides)
