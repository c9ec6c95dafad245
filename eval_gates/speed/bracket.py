"""Which request rate to try next, to find the highest one that a server keeps its limits at.

Isotonic bracketing, as for the dose that half of all patients tolerate (Stylianou and Flournoy,
Biometrics 2002, 58:171-177): a server keeps its limits in fewer rounds the higher the rate is, so
the shares of 0/1 rounds at the rates tried so far are pooled until they fall (pool adjacent
violators: Ayer et al., Annals of Mathematical Statistics 1955, 26:641-647). The rate is doubled, or
halved, until the fit crosses the share that is asked for, then the bracket is halved. Each end is
tried again before it is believed, so that one round of bad luck misleads no search.

What is found is where to look, and no evidence: rates were chosen by these very rounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

NARROW = 1.08
"""High over low of a bracket that is not halved any more."""
AGAIN = 4
"""How often each end of a narrow bracket is tried, at least."""


@dataclass(frozen=True)
class Reach:
    """How far a search may go, in requests/s."""

    start: float
    lowest: float
    highest: float

    def clip(self, rate: float) -> float:
        """The rate within it, to four digits: logarithms of two machines differ in the last."""
        return float(f"{min(max(rate, self.lowest), self.highest):.4g}")


@dataclass
class Bracket:
    """What the rounds of one side tell of its goodput.

    Args:
        share: of rounds that keep the limits, that is asked for.
    """

    share: float
    _counts: dict[float, tuple[int, int]] = field(default_factory=dict)  # rate: kept, of

    def add(self, rate: float, kept: bool) -> None:
        """Take a round at so many requests/s."""
        did, of = self._counts.get(rate, (0, 0))
        self._counts[rate] = did + kept, of + 1

    def shares(self) -> dict[float, float]:
        """The fitted share of rounds that keep the limits at each rate, lowest first."""
        pools: list[tuple[int, int, list[float]]] = []
        for rate, (did, of) in sorted(self._counts.items()):
            rates = [rate]
            while pools and pools[-1][0] * of <= did * pools[-1][1]:
                before = pools.pop()
                did, of, rates = did + before[0], of + before[1], before[2] + rates
            pools.append((did, of, rates))
        return {rate: did / of for did, of, rates in pools for rate in rates}

    def ends(self) -> tuple[float | None, float | None]:
        """The highest rate at which the share is reached, and the lowest at which it is not."""
        shares = self.shares()
        return (
            max((rate for rate, fitted in shares.items() if fitted >= self.share), default=None),
            min((rate for rate, fitted in shares.items() if fitted < self.share), default=None),
        )

    def estimate(self) -> float | None:
        """The goodput: the geometric mean of both ends, or the only one; None without any round."""
        known = [math.log(end) for end in self.ends() if end is not None]
        return math.exp(sum(known) / len(known)) if known else None

    def next_rate(self, reach: Reach) -> tuple[float, bool]:
        """The rate of the next round of a search, and whether it is still needed.

        A pure function of the rounds so far, so that whoever has them can tell whether they are
        those that it asked for.
        """
        middle, (low, high) = self.estimate(), self.ends()
        if middle is None:
            return reach.clip(reach.start), True
        if low is None or high is None:
            rate = reach.clip(middle * (2 if high is None else 0.5))
            if rate not in self._counts:
                return rate, True
        elif high / low > NARROW:
            return reach.clip(middle), True
        least = min((end for end in (low, high) if end is not None), key=self._times_tried)
        return least, self._times_tried(least) < AGAIN

    def _times_tried(self, rate: float) -> int:
        return self._counts[rate][1]
