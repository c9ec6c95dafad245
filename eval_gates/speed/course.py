"""The course of measuring goodputs: which rates come next, and what the tests so far say.

A pure fold over rounds that keep the limits or do not, so that whoever has the rounds can tell what
was asked for.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Self

from pydantic import Field, model_validator

from eval_gates.speed.bracket import Bracket, Reach
from eval_gates.speed.drift import undoes
from eval_gates.speed.lives import RuleOfLives
from eval_gates.speed.load import Side
from eval_gates.speed.share import log_evidence_of

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
    margins: dict[Side, list[float]] = field(default_factory=lambda: {side: [] for side in BOTH})
    """Of each round, above 0 where it kept the limits; of a lost life nan."""
    evidence: list[tuple[float, float]] = field(default_factory=list)
    """Log evidence of the claim, and of its contrary, after each round: it never falls."""
    _largest: dict[tuple[Side, bool], float] = field(default_factory=dict)
    _counts: Counter[tuple[Side, bool]] = field(default_factory=Counter)  # side, kept

    def add(self, margins: Mapping[Side, float]) -> None:
        """Take a round of both sides. What has two parts has the evidence of the weaker one.

        A round that was lost with its life is none of either kind, on both sides.
        """
        for side in BOTH:
            self.margins[side].append(margins[side])
            if not math.isnan(margins[side]):
                self._counts[side, margins[side] > 0] += 1
            for keeps in (True, False):
                did, of = self.rounds_that(side, keeps), len(self.margins[side])
                found = log_evidence_of(did, of, self.share if keeps else 1 - self.share)
                self._largest[side, keeps] = max(found, self._settled_by(side, keeps))
        self.evidence.append(
            (
                min(self._settled_by("candidate", True), self._settled_by("baseline", False))
                * self.may_pass,
                min(self._settled_by("candidate", False), self._settled_by("baseline", True))
                * self.may_fail,
            )
        )

    def rounds_that(self, side: Side, keeps: bool) -> int:
        """How many rounds of a side kept the limits, or did not."""
        return self._counts[side, keeps]

    def rounds_of(self, side: Side) -> int:
        """How many rounds of a side were measured."""
        return self.rounds_that(side, True) + self.rounds_that(side, False)

    def is_open(self, needed: float) -> bool:
        """Whether a side may keep its limits often enough at its rate, or may not.

        Also where the evidence suffices, and what was measured runs towards the other side.
        """
        if max(self.evidence[-1]) >= needed:
            return self.decides(len(self.evidence), needed) is None
        return any(
            max(self._settled_by(side, True), self._settled_by(side, False)) < needed
            for side in BOTH
        )

    def decides(self, number: int, needed: float) -> Literal["pass", "fail"] | None:
        """What so many rounds decide: nothing, too, while a side drifts towards the other one."""
        passing, failing = self.evidence[number - 1]
        if failing >= needed and not self.undone("fail", number):
            return "fail"
        if passing >= needed and not self.undone("pass", number):
            return "pass"
        return None

    def undone(self, verdict: Literal["pass", "fail"], number: int | None = None) -> list[Side]:
        """The sides whose margins run towards the contrary, after so many rounds, or all."""
        import numpy as np

        passes = 1.0 if verdict == "pass" else -1.0
        signs: dict[Side, float] = {"candidate": passes, "baseline": -passes}
        found = {side: sign * np.array(self.margins[side][:number]) for side, sign in signs.items()}
        return [side for side, of in found.items() if undoes(of[~np.isnan(of)])]

    def _settled_by(self, side: Side, keeps: bool) -> float:
        return self._largest.get((side, keeps), 0.0)


class RatesRule(RuleOfLives):
    """Between which rates is searched, and what settles a pair of them."""

    minimum: float = Field(gt=0, description="smallest acceptable ratio of goodputs")
    share: float = Field(gt=0, lt=1, description="of rounds that keep them, at a side's goodput")
    alpha: float = Field(gt=0, lt=0.5, description="error rate of a pass, and of a fail")
    rounds: int = Field(ge=1, description="of each side at a pair of rates, at most")
    steered_by: float | None = Field(
        None, gt=0, lt=0.5, description="error rate at which measuring goes on; None: alpha"
    )
    start: float = Field(1.0, gt=0, description="requests/s that a search begins with")
    lowest: float = Field(1e-3, gt=0, description="requests/s, of any round")
    highest: float = Field(1e5, gt=0, description="requests/s, of any round")
    allowance: float = Field(0.0, ge=0, description="of ln(ratio), for how lives differ")
    allowance_alpha: float = Field(0.0, ge=0, lt=0.5, description="the share of alpha in it")

    @model_validator(mode="after")
    def _something_is_left_to_the_rounds(self) -> Self:
        if self.allowance_alpha >= min(self.alpha, self.steered_by or self.alpha):
            raise ValueError("the allowance for lives takes all of alpha")
        return self

    def needed(self, alpha: float) -> float:
        """Log evidence that settles one side at one pair of rates."""
        return math.log(TESTS / (alpha - self.allowance_alpha))


class Course:
    """What was measured, in order.

    Args:
        rule: whose tests they are.
    """

    def __init__(self, rule: RatesRule) -> None:
        self._rule = rule
        self._needed = rule.needed(rule.steered_by or rule.alpha)
        self._reach = Reach(rule.start, rule.lowest, rule.highest)
        self._brackets = {side: Bracket(rule.share) for side in BOTH}
        self._searched = 0  # since the last test
        self.tests: list[RatesTest] = []
        self.rounds = 0
        self.is_testing = False  # the next round is evidence, and not of a search
        self.rates = self._next()  # requests/s of each side's next round; empty: it is over

    def add(self, margins: Mapping[Side, float], lost: int = 0) -> None:
        """Take the round that was asked for.

        Args:
            margins: of each side, above 0 where it kept the limits.
            lost: lives of the servers that ended too soon before it. Of a test each is a round for
                neither side, since it may have been ended because a round looked bad; the search
                is no evidence.
        """
        for side, rate in self.rates.items():
            self._brackets[side].add(rate, margins[side] > 0)
        self.rounds += 1
        if self.is_testing:
            for _ in range(lost):
                self.tests[-1].add(dict.fromkeys(BOTH, math.nan))
            self.rounds += lost
            self.tests[-1].add(margins)
        else:
            self._searched += 1
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
