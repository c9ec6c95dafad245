"""The course of measuring goodputs: which rates come next, and what the tests so far say.

A pure fold over rounds of 0 and 1, so that whoever has the rounds can tell what was asked for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from eval_gates.speed.bracket import Bracket, Reach
from eval_gates.speed.load import Side
from eval_gates.speed.share import log_evidence

if TYPE_CHECKING:
    from eval_gates.speed.goodput import GoodputRule

TESTS = 2
"""Pairs of rates that are tested at most; each has this share of the error rate."""
SEARCH = 16
"""Rounds of the search before each of them, at most."""
BOTH: tuple[Side, Side] = ("baseline", "candidate")


@dataclass
class RatesTest:
    """Fresh rounds of both sides at one pair of rates."""

    begins: int  # after so many rounds
    rates: dict[Side, float]  # requests/s
    share: float
    may_pass: bool = True  # the rates are apart by no less than the claim and its allowance
    may_fail: bool = True
    kept: dict[Side, list[bool]] = field(default_factory=lambda: {side: [] for side in BOTH})
    evidence: list[tuple[float, float]] = field(default_factory=list)
    """Log evidence of the claim, and of its contrary, after each round: it never falls."""
    _largest: dict[tuple[Side, bool], float] = field(default_factory=dict)

    def add(self, kept: Mapping[Side, bool]) -> None:
        """Take a round of both sides. What has two parts has the evidence of the weaker one."""
        for side in BOTH:
            self.kept[side].append(kept[side])
            did, of = sum(self.kept[side]), len(self.kept[side])
            for keeps in (True, False):
                found = _evidence(did if keeps else of - did, of, self._claimed(keeps))
                self._largest[side, keeps] = max(found, self._settled_by(side, keeps))
        self.evidence.append(
            (
                min(self._settled_by("candidate", True), self._settled_by("baseline", False))
                * self.may_pass,
                min(self._settled_by("candidate", False), self._settled_by("baseline", True))
                * self.may_fail,
            )
        )

    def is_open(self, needed: float) -> bool:
        """Whether a side may keep its limits often enough at its rate, or may not."""
        return any(
            max(self._settled_by(side, True), self._settled_by(side, False)) < needed
            for side in BOTH
        )

    def _claimed(self, keeps: bool) -> float:
        return self.share if keeps else 1 - self.share

    def _settled_by(self, side: Side, keeps: bool) -> float:
        return self._largest.get((side, keeps), 0.0)


@lru_cache(maxsize=65_536)
def _evidence(happened: int, of: int, share: float) -> float:
    """That it happens in more than that share of rounds; their order has no influence."""
    import numpy as np

    return float(log_evidence(np.repeat([True, False], [happened, of - happened]), share)[-1])


class Course:
    """What was measured, in order.

    Args:
        rule: whose tests they are.
    """

    def __init__(self, rule: GoodputRule) -> None:
        self._rule = rule
        self._needed = rule.needed(rule.steered_by or rule.alpha)
        self._reach = Reach(rule.start, rule.lowest, rule.highest)
        self._brackets = {side: Bracket(rule.share) for side in BOTH}
        self._searched = 0  # since the last test
        self.tests: list[RatesTest] = []
        self.rounds = 0
        self.is_testing = False  # the next round is evidence, and not of a search
        self.rates = self._next()  # requests/s of each side's next round; empty: it is over

    def add(self, kept: Mapping[Side, bool]) -> None:
        """Take the round that was asked for: whether each side kept the limits."""
        for side, rate in self.rates.items():
            self._brackets[side].add(rate, kept[side])
        if self.is_testing:
            self.tests[-1].add(kept)
        else:
            self._searched += 1
        self.rounds += 1
        self.rates = self._next()

    def goodputs(self) -> dict[Side, float]:
        """What all rounds of each side tell of its goodput: requests/s, without a bound."""
        found = {side: self._brackets[side].estimate() for side in BOTH}
        return {side: rate for side, rate in found.items() if rate is not None}

    def estimate(self) -> float | None:
        """The candidate's goodput over the baseline's; None before any round."""
        found = self.goodputs()
        return found["candidate"] / found["baseline"] if found else None

    def _next(self) -> dict[Side, float]:
        if self.is_testing:
            test = self.tests[-1]
            if test.is_open(self._needed) and len(test.evidence) < self._rule.rounds:
                return dict(test.rates)
            if max(test.evidence[-1]) >= self._needed or len(self.tests) == TESTS:
                return {}
            self.is_testing, self._searched = False, 0
        return self._search() or self._test()

    def _search(self) -> dict[Side, float]:
        found = {side: self._brackets[side].next_rate(self._reach) for side in BOTH}
        if self._searched >= SEARCH or not any(needed for _, needed in found.values()):
            return {}
        return {side: rate for side, (rate, _) in found.items()}

    def _test(self) -> dict[Side, float]:
        """Between the goodputs, where a candidate that is better than claimed keeps its limits."""
        rule, found = self._rule, self.goodputs()
        baseline, candidate = (found[side] for side in BOTH)
        ahead = candidate / baseline >= rule.minimum
        times = rule.minimum * math.exp(rule.allowance if ahead else -rule.allowance)
        reach = replace(
            self._reach,
            lowest=rule.lowest / min(times, 1.0),
            highest=rule.highest / max(times, 1.0),
        )
        rate = reach.clip(math.sqrt(baseline * candidate / times))
        rates: dict[Side, float] = {"baseline": rate, "candidate": times * rate}
        both = not rule.allowance
        self.tests.append(
            RatesTest(self.rounds, rates, rule.share, ahead or both, not ahead or both)
        )
        self.is_testing = True
        return dict(rates)
