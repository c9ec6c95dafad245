"""The candidate's goodput over the baseline's: the highest rates at which each keeps its limits.

Goodput of a side is the highest rate of requests (Poisson) at which at least a share q of all
rounds keeps the limits. The claim is goodput(candidate) >= minimum x goodput(baseline).

*How it is shown.* Of two rates, r for the baseline and minimum x r for the candidate, it is enough
that the candidate keeps the limits at its own and the baseline does not at r: with a share that
does not rise with the rate, goodput(candidate) >= minimum x r and r >= goodput(baseline). Where the
claim is wrong, for every r at least one of the two is wrong as well. So both are tested at the
whole error rate, and not at half of it (intersection-union: Berger, Technometrics 1982, 24:295;
Berger and Hsu, Statistical Science 1996, 11:283). The mirror decides `fail`: the candidate does not
keep them, and the baseline does. Each is the bet on rounds of 0 and 1 that limits have (slo.py).

*Which r.* Between the two goodputs, the candidate's over the minimum: their geometric mean, as far
as a search tells (bracket.py). The search's rounds are no evidence, and those that decide are fresh
ones. Where both sides keep the limits, or neither, or one stays open, nothing is learned of the
ratio: all rounds so far tell another r, and other fresh rounds are drawn. That may happen `TESTS`
times, each with its equal share of the error rate.

A life of the servers that was lost counts in a test as a round for neither side, and a verdict
waits while the times at its two rates run towards the other one, as of any rule (unit_rule.py).

Where two lives of one server differ, r is stretched by an allowance, as the ratio's is (ratio.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, repeat
from typing import ClassVar

from pydantic import Field

from eval_gates.records import TrailPoint
from eval_gates.speed.course import SEARCH, TESTS, Course, RatesRule
from eval_gates.speed.drift import medians_of_halves
from eval_gates.speed.finding import SpeedFinding, State
from eval_gates.speed.load import MeasuredLoad, Side
from eval_gates.speed.slo import FAR, SloRule, drifting_times
from eval_gates.speed.trust import Distrust, distrusted

OF_TOO_HIGH_A_RATE = ("client_lag", "too_short")
"""Causes that refuse a test, and of a search only tell that a lower rate is to be looked at."""

SAME = 1e-6
"""How much two rates may differ, as logarithms of two machines do."""


class GoodputRule(RatesRule):
    """What decides a ratio of goodputs."""

    limits: dict[str, float] = Field(description="by name, such as ttft_ms_p95, or errors")
    hit_rate: float | None = Field(None, description="that the workload declares")
    must_count_hits: bool = Field(False, description="also where none are declared")

    unit: ClassVar[str] = "rounds"

    @property
    def cap(self) -> int:
        """The most rounds."""
        return TESTS * (SEARCH + self.rounds)

    @property
    def warm_up(self) -> int:
        """Rounds before the first that counts: the search is it."""
        return 0

    def state(self, loads: Sequence[MeasuredLoad]) -> State:
        """What the loads so far decide."""
        return self.finding(loads).state

    def wants_more(self, loads: Sequence[MeasuredLoad]) -> bool:
        """Whether another round could decide it."""
        return bool(self.next_rates(loads))

    def next_rates(self, loads: Sequence[MeasuredLoad]) -> dict[str, float]:
        """Requests/s of each side's next round; none where measuring is over.

        Raises:
            ValueError: a load is at another rate than was asked for.
        """
        course, refused = self._follow(loads)
        is_over = refused or not self.has_room(loads)
        return {} if is_over else {str(side): rate for side, rate in course.rates.items()}

    def finding(self, loads: Sequence[MeasuredLoad]) -> SpeedFinding:
        """Judge the loads, in the order of measuring.

        Raises:
            ValueError: a load is at another rate than was asked for.
        """
        course, refused = self._follow(loads)
        if refused:
            return SpeedFinding("refused", refused=refused)
        found = self.finding_of(course)
        if found.state != "refused":
            return found
        return replace(found, refused=self._drift(course, loads))

    def finding_of(self, course: Course) -> SpeedFinding:
        """Judge what was measured so far; where it drifts to the end, refused without words."""
        needed, share = self.needed(self.alpha), math.log(TESTS)
        state: State = "open"
        at, best, trail = None, (0.0, 0.0), []
        estimate = course.estimate()
        for test in course.tests:
            for number, (passing, failing) in enumerate(test.evidence, start=test.begins + 1):
                best = (max(best[0], passing), max(best[1], failing))
                trail.append(
                    TrailPoint(
                        n=number,
                        mean=estimate or 0.0,
                        log10_e_pass=(best[0] - share) / math.log(10),
                        log10_e_fail=(best[1] - share) / math.log(10),
                    )
                )
                decided = test.decides(number - test.begins, needed) if at is None else None
                if decided is not None:
                    state, at = decided, number
        if at is None and max(best) >= needed and not course.rates:
            state, best = "refused", (0.0, 0.0)
        return SpeedFinding(
            state=state,
            n=course.rounds,
            decided_at=at,
            estimate=estimate,
            lower=self.minimum if state == "pass" else None,
            upper=self.minimum if state == "fail" else None,
            p_value=min(1.0, math.exp(share - best[0]) + self.allowance_alpha),
            trail=tuple(trail),
            course=course,
        )

    def margins(self, loads: Sequence[MeasuredLoad]) -> list[float]:
        """Of each load, ln(limit / time) of its tightest limit: above 0 where it keeps all."""
        limits = SloRule(limits=self.limits, share=self.share, alpha=self.alpha, rounds=1)
        ours = [load.model_copy(update={"side": "candidate"}) for load in loads]
        return [float(margin) for margin in limits.margins(ours)]

    def _follow(self, loads: Sequence[MeasuredLoad]) -> tuple[Course, tuple[Distrust, ...]]:
        """The course that measuring took, and why it cannot be trusted."""
        causes = distrusted(
            loads,
            declared=self.hit_rate,
            judged_s=self._judged_s,
            must_count=self.must_count_hits,
        )
        too_high = {(each.side, each.block) for each in causes if each.kind in OF_TOO_HIGH_A_RATE}
        rounds: dict[int, dict[Side, tuple[float, float]]] = {}
        for load, margin in zip(loads, self.margins(loads), strict=True):
            known = -FAR if (load.side, load.block) in too_high else margin
            rounds.setdefault(load.block, {})[load.side] = (load.rate or math.nan, known)
        course, tested = Course(self), set()
        lost = chain(self.lost_before(loads), repeat(0))  # of a round that is half there
        for number, found in rounds.items():
            asked = course.rates
            if found.keys() != asked.keys() or not all(
                math.isclose(found[side][0], rate, rel_tol=SAME) for side, rate in asked.items()
            ):
                raise ValueError(f"round {number} is at other rates than were asked for")
            if course.is_testing:
                tested.add(number)
            course.add({side: margin for side, (_, margin) in found.items()}, next(lost))
        return course, tuple(
            cause
            for cause in causes
            if cause.kind not in OF_TOO_HIGH_A_RATE or cause.block in tested
        )

    def _drift(self, course: Course, loads: Sequence[MeasuredLoad]) -> tuple[Distrust, ...]:
        """Of the sides whose times over their limits went towards the other verdict."""
        import numpy as np

        needed, found = self.needed(self.alpha), []
        test = next(each for each in course.tests if max(each.evidence[-1]) >= needed)
        passing, failing = test.evidence[-1]
        for side in test.undone("pass" if passing > failing else "fail"):
            known = np.array([each for each in test.margins[side] if not math.isnan(each)])
            before, now = medians_of_halves(known)
            last = [load for load in loads if load.side == side][-1]
            found.append(drifting_times(last, before, now))
        return tuple(found)

    @property
    def _judged_s(self) -> float | None:
        """The shortest limit, that the client's own lag is held against."""
        times = [v for n, v in self.limits.items() if n.startswith(("ttft_ms", "latency_ms"))]
        return min(times) / 1e3 if times else None
