"""How blocks and rounds decide a claim: each lies on one side of it, and a bet counts the sides.

Every unit gives one margin: how far it is on the claim's side, negative on the other. The first
`WARM_UP` units, and those of the first `WARM_UP_SECONDS`, of servers that stay up count for
nothing, but are kept, and show what comes after them whether it drifts. There is no verdict before
`SETTLED` units.
Then the claim is that margins are positive in at least a share of all units (see share.py). It is
decided at the first unit after which the evidence suffices and its side is not being left: of
margins that run towards the other side nothing is said of the next ones (see drift.py). While they
do, measuring goes on; if they still do at the cap, further units are measured, within a budget.

A unit with a fault is void: it counts for neither side (see validity.py), and further ones are
measured in its place. So does a unit whose side depends on how late the client was.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pydantic import Field

from eval_gates.gate_report import EProcessPoint
from eval_gates.speed.drift import undoes
from eval_gates.speed.invalid_reasons import InvalidReason, lagging
from eval_gates.speed.load_run import LoadRun
from eval_gates.speed.proportion_test import log_evidence
from eval_gates.speed.result import SpeedTestResult, State
from eval_gates.speed.server_runs import ServerRunRule
from eval_gates.speed.validity import ending, lasting

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from eval_gates.speed.proportion_test import FloatArray

WARM_UP = 2
"""Units of one life of the servers that are measured before the first that counts."""
WARM_UP_SECONDS = 30.0
"""Units that begin sooner after the first one of their life count for nothing, either."""
SETTLED = 12
"""Units, those of the warm-up among them, that servers which stay up are measured for before any
verdict. In fewer no test can see that one side was slow in all of them and will not be."""
LOST_SECONDS = 1_800.0
"""Of loads that are measured in vain: for longer, one run does not try."""
MORE_FOR_LOST = 2.0
"""Further units for each lost one, times what a unit on the claim's side gains less than a lost one
costs: 4 at a share of one half, 10 at 0.8."""


def warm_up_units(rule: SequentialGateRule, unit_seconds: float) -> int:
    """Expected number of units of one life that count for nothing.

    Args:
        rule: that decides.
        unit_seconds: that each unit lasts.
    """
    if not rule.warm_up:
        return 0
    return max(rule.warm_up, math.ceil(WARM_UP_SECONDS / unit_seconds))


class SequentialGateRule(ServerRunRule):
    """What decides a claim on speed."""

    alpha: float = Field(gt=0, lt=0.5, description="error rate of a pass, and of a fail")
    hit_rate: float | None = Field(None, description="that the workload declares")
    settled: int = Field(
        SETTLED, ge=0, description="units before any verdict, where servers stay up"
    )
    must_count_hits: bool = Field(
        False, description="also where none are declared: prompts of a file may share something"
    )

    @property
    @abstractmethod
    def unit(self) -> str:
        """What it counts."""

    @property
    @abstractmethod
    def cap(self) -> int:
        """The most units that count."""

    @property
    @abstractmethod
    def claimed(self) -> float:
        """The share of units that is claimed."""

    @property
    def level(self) -> float:
        """What of alpha is left to the units."""
        return self.alpha

    @abstractmethod
    def distrusted(self, loads: Sequence[LoadRun]) -> tuple[InvalidReason, ...]:
        """Why the loads are not what the claim is about."""

    @abstractmethod
    def margins(self, loads: Sequence[LoadRun]) -> FloatArray:
        """Of every unit, those of the warm-up among them: [warm-up + n], finite.

        Raises:
            ValueError: a unit lacks a side, or is of the wrong one.
        """

    @abstractmethod
    def sides(self, margins: FloatArray) -> tuple[FloatArray, FloatArray]:
        """How far each is on the claim's side, and on the other: [..., n] each, like `margins`.

        Above 0 it is; one may be on neither.
        """

    @abstractmethod
    def describe(
        self, margins: FloatArray, slack: FloatArray, continued: Sequence[int]
    ) -> tuple[FloatArray, float | None, float | None]:
        """The estimate after each of the units that count, and both bounds.

        Args:
            margins: of the units that count, nan where lost; one at least is not.
            slack: as of `slack`, of these.
            continued: as of `log_evidence`, of these.
        """

    def slack(self, loads: Sequence[LoadRun]) -> FloatArray:
        """How much smaller and larger each margin may be for the client's lag: [2, n], >= 0."""
        import numpy as np

        return np.zeros((2, len(self.margins(loads))))

    def lagging(self, loads: Sequence[LoadRun]) -> InvalidReason:
        """The client's lag in a unit whose side depends on it."""
        return lagging(max(loads, key=lambda load: load.client_lag_s or 0.0))

    @abstractmethod
    def drift(self, loads: Sequence[LoadRun]) -> InvalidReason:
        """Which side of loads that drift does, and how far."""

    def state(self, loads: Sequence[LoadRun]) -> State:
        """What the loads so far decide."""
        return self.finding(loads).state

    def wants_more(self, loads: Sequence[LoadRun]) -> bool:
        """Whether another unit could decide it: open, with budget, and with room."""
        found = self.finding(loads)
        return found.state == "open" and found.n < found.most and self.has_room(loads)

    def finding(self, loads: Sequence[LoadRun]) -> SpeedTestResult:
        """Judge the units, in the order of measuring; a pass may be withheld.

        Raises:
            ValueError: a unit lacks a side, or is of the wrong one.
        """
        import numpy as np

        causes = self.distrusted(loads)
        if ended := ending(causes):
            return SpeedTestResult("invalid", invalid_reasons=ended)
        units = self._units(loads)
        faults = _by_unit(causes, units)
        fit = [unit for unit, found in zip(units, faults, strict=True) if not found]
        sound = [load for unit in fit for load in unit]
        is_void = np.array([bool(found) for found in faults], dtype=bool)
        margins, slack = np.full(len(units), np.nan), np.zeros((2, len(units)))
        if sound:
            margins[~is_void], slack[:, ~is_void] = self.margins(sound), self.slack(sound)
        counted = self.count(loads)
        straddles = counted & self._straddles(margins, slack)
        run = np.zeros(len(units), dtype=int)
        for first in self.continued_at(units):
            run[first:] += 1
        found = self.finding_of(*self._with_lost_lives(loads, margins, counted, slack, run))
        if found.state == "pass" and (words := self.withholds(loads)) is not None:
            found = replace(found, state="open", decided_at=None, p_value=1.0, withheld=words)
        late = [self.lagging(units[place]) for place in np.flatnonzero(straddles)]
        voided = tuple(sorted([*causes, *late], key=lambda each: each.block))
        lost = (is_void & counted) | straddles
        seconds = sum(
            load.seconds for place in np.flatnonzero(is_void | straddles) for load in units[place]
        )
        spent = seconds > len(self.began) * LOST_SECONDS or lasting(faults, len(self.began))
        return self._within_budget(found, sound, voided, int(lost.sum()), spent=spent)

    @abstractmethod
    def withholds(self, loads: Sequence[LoadRun]) -> str | None:
        """Why the loads so far pass nothing whatever single units show, in words; None: nothing.

        It can only turn a pass into an open gate, so error rates hold.
        """

    def counting(self, loads: Sequence[LoadRun]) -> list[LoadRun]:
        """The loads of units that count and are not void."""
        units = self._units(loads)
        faults = _by_unit(self.distrusted(loads), units)
        return [
            load
            for unit, counts, found in zip(units, self.count(loads), faults, strict=True)
            if counts and not found
            for load in unit
        ]

    @property
    def fewest(self) -> int:
        """Units that count before any verdict."""
        return max(1, self.settled - self.warm_up) if self.warm_up else 1

    def _within_budget(
        self,
        found: SpeedTestResult,
        sound: Sequence[LoadRun],
        voided: tuple[InvalidReason, ...],
        lost: int,
        *,
        spent: bool,
    ) -> SpeedTestResult:
        """The finding, open as long as the budget allows further units.

        Args:
            found: from the margins alone; refused where they drift at the cap.
            sound: loads without a fault.
            voided: faults, in the order of measuring.
            lost: units that count for neither side because of these.
            spent: the budget is spent for another reason than the number of units.
        """
        # A run that continues begins a bet of its own, and so has as many units as the first.
        cap, drifts = len(self.began) * self.cap, found.state == "invalid"
        for_lost = math.ceil(MORE_FOR_LOST / (1 - self.claimed) * lost)
        most = cap + (cap if drifts else min(cap, for_lost))
        found = replace(found, voided=voided, lost=lost, most=most)
        if found.state in ("pass", "fail"):
            return found
        spent = spent or found.n >= 2 * cap
        if drifts and (spent or found.n >= most):
            return replace(found, state="disturbed", invalid_reasons=(self.drift(sound),))
        if (lost or voided) and spent:
            return replace(found, state="disturbed", invalid_reasons=voided)
        return replace(found, state="open")

    def _units(self, loads: Sequence[LoadRun]) -> list[Sequence[LoadRun]]:
        """The loads of each unit."""
        size = max(1, self.spread_over(sorted({load.side for load in loads})).unit)
        return [loads[start : start + size] for start in range(0, len(loads), size)]

    def _straddles(self, margins: FloatArray, slack: FloatArray) -> NDArray[np.bool_]:
        """Which units lie on one side as measured, and on neither with the client's lag."""
        measured = [each > 0 for each in self.sides(margins)]
        surely = [each > 0 for each in self._sure_sides(margins, slack)]
        return (measured[0] | measured[1]) & ~(surely[0] | surely[1])

    def _sure_sides(self, margins: FloatArray, slack: FloatArray) -> tuple[FloatArray, FloatArray]:
        """As `sides`, whatever the client's lag did: each side at its worst."""
        for_it, against = self.sides(margins)
        return for_it - slack[0], against - slack[1]

    @property
    def warm_up(self) -> int:
        """Units that count for nothing; none where each life is of a server that was warmed up."""
        return 0 if self.server_mode == "interleaved" else WARM_UP

    def count(self, loads: Sequence[LoadRun]) -> NDArray[np.bool_]:
        """Which units count: not the first ones of a life; [warm-up + n]."""
        import numpy as np

        if not self.warm_up:
            blocks = len({load.block for load in loads})
            return np.ones(blocks // self.loads_per_server_run, dtype=bool)
        units = list({load.block: load for load in reversed(loads)}.values())[::-1]
        lives = [unit.server_run for unit in units]
        places = [lives[:number].count(life) for number, life in enumerate(lives)]
        waited = [unit.started - units[lives.index(unit.server_run)].started for unit in units]
        return (np.array(places, dtype=int) >= self.warm_up) & (np.array(waited) >= WARM_UP_SECONDS)

    def _with_lost_lives(
        self,
        loads: Sequence[LoadRun],
        margins: FloatArray,
        counted: NDArray[np.bool_],
        slack: FloatArray,
        run: NDArray[np.int_],
    ) -> tuple[FloatArray, NDArray[np.bool_], FloatArray, NDArray[np.int_]]:
        """The same, with a unit that speaks for neither side for each lost life.

        Who could end those lives that look bad gains nothing: for either side such a unit counts
        as one that is not on it.
        """
        import numpy as np

        if not counted.any():
            return margins, counted, slack, run
        lost = self.lost_before(loads)
        # Not before the first unit that counts, which the estimate begins with.
        after = int(counted.argmax()) + 1
        places = np.maximum(np.repeat(np.arange(len(lost)), lost), after)
        return (
            np.insert(margins, places, np.nan),
            np.insert(counted, places, True),
            np.insert(slack, places, 0.0, axis=1),
            np.insert(run, places, run[np.minimum(places, run.size - 1)]),
        )

    def finding_of(
        self,
        margins: FloatArray,
        counted: NDArray[np.bool_] | None = None,
        slack: FloatArray | None = None,
        run: NDArray[np.int_] | None = None,
    ) -> SpeedTestResult:
        """Judge margins of units, those of the warm-up among them.

        Args:
            margins: in the order of measuring; nan of a lost life, and of a void unit.
            counted: which of them count; None: of one life, all after its warm-up.
            slack: as of `slack`; None: the client was never late.
            run: number of the run that measured each, from 0; None: of one run.

        Returns:
            what they say; where they drift at the cap, refused without words.
        """
        import numpy as np

        if counted is None:
            counted = np.arange(margins.size) >= self.warm_up
        slack = np.zeros((2, margins.size)) if slack is None else slack
        places, known = np.flatnonzero(counted), ~np.isnan(margins[counted])
        if not known.any():
            return SpeedTestResult("open", n=int(places.size))
        counting, of_these = margins[places], slack[:, places]
        of_run = np.zeros(places.size, dtype=int) if run is None else run[places]
        continued = [int((of_run < each).sum()) for each in range(1, int(of_run.max()) + 1)]
        for_it, against = self._sure_sides(counting, of_these)
        passing = log_evidence(for_it > 0, self.claimed, continued)
        failing = log_evidence(against > 0, 1 - self.claimed, continued)
        state, at = self._decide(margins, places, passing, failing)
        estimates, lower, upper = self.describe(counting, of_these, continued)
        evidence = 0.0 if state == "invalid" else float(np.maximum(0.0, passing.max()))
        return SpeedTestResult(
            state=state,
            n=int(counting.size),
            decided_at=at,
            estimate=float(estimates[-1]),
            lower=lower,
            upper=upper,
            p_value=min(1.0, math.exp(-evidence) + self.alpha - self.level),
            e_process=_trail(estimates, passing, failing),
        )

    def log_evidence(self, margins: FloatArray) -> tuple[FloatArray, FloatArray]:
        """For the claim, and against it, after each unit that counts: [..., n] each."""
        for_it, against = self.sides(margins)
        return log_evidence(for_it > 0, self.claimed), log_evidence(against > 0, 1 - self.claimed)

    def _decide(
        self,
        margins: FloatArray,
        places: NDArray[np.int_],
        passing: FloatArray,
        failing: FloatArray,
    ) -> tuple[State, int | None]:
        """The first unit that decides; a fail where both could."""
        import numpy as np

        needed = -math.log(self.level)
        enough: NDArray[np.bool_] = (passing >= needed) | (failing >= needed)
        for_it, against = self.sides(margins)
        settled = np.cumsum(~np.isnan(margins))[places] >= (self.settled if self.warm_up else 0)
        for number in np.flatnonzero(enough & settled):
            seen = slice(int(places[number]) + 1)
            if failing[number] >= needed and not undoes(_known(against[seen])):
                return "fail", int(number) + 1
            if passing[number] >= needed and not undoes(_known(for_it[seen])):
                return "pass", int(number) + 1
        drifts = bool(enough.any()) and enough.size >= self.cap
        return ("invalid" if drifts else "open"), None


def _by_unit(
    causes: Iterable[InvalidReason], units: Sequence[Sequence[LoadRun]]
) -> list[list[InvalidReason]]:
    """The faults of each unit."""
    unit_of = {load.block: number for number, unit in enumerate(units) for load in unit}
    found: list[list[InvalidReason]] = [[] for _ in units]
    for cause in causes:
        found[unit_of[cause.block]].append(cause)
    return found


def _known(margins: FloatArray) -> FloatArray:
    import numpy as np

    return margins[~np.isnan(margins)]


def _trail(
    estimates: FloatArray, passing: FloatArray, failing: FloatArray
) -> tuple[EProcessPoint, ...]:
    """The evidence after each unit, as powers of ten."""
    ten = math.log(10)
    return tuple(
        EProcessPoint(
            n=number,
            mean=float(estimate),
            log10_e_pass=float(up) / ten,
            log10_e_fail=float(down) / ten,
        )
        for number, (estimate, up, down) in enumerate(
            zip(estimates, passing, failing, strict=True), start=1
        )
    )
