"""Sequential decision of a performance gate by a bet on the side of each unit.

Each unit gives one margin: positive on the passing side, negative on the failing side. The first
`WARM_UP` units of a server run, and those of its first `WARM_UP_SECONDS`, do not count but show
drift. There is no verdict before `SETTLED` units.

The gate requires positive margins in at least a given share of all units (see proportion_test.py).
The first unit with sufficient evidence and without drift to the other side (see drift.py) decides.
If the margins still drift at the cap, measuring continues within a budget.

A unit that is faulty, or whose side depends on the client's lag, is void (see validity.py). Another
unit replaces it.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pydantic import Field

from eval_gates.speed.drift import would_reverse
from eval_gates.speed.invalid_reasons import InvalidReason, client_lag_reason
from eval_gates.speed.load_run import LoadRun
from eval_gates.speed.proportion_test import log_evidence
from eval_gates.speed.result import EProcessPoint, SpeedTestResult, State
from eval_gates.speed.server_runs import ServerRunRule
from eval_gates.speed.validity import final_reasons, lasting

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from eval_gates.speed.proportion_test import FloatArray

WARM_UP = 2
"""Units of a server run before the first that counts."""
WARM_UP_SECONDS = 30.0
"""Units that begin sooner after the first unit of their server run do not count either."""
SETTLED = 12
"""Units, including the warm-up, before any verdict on servers that stay up.

With fewer, no test can detect that one side is slow at first only.
"""
LOST_SECONDS = 1_800.0
"""Limit on the duration of a run's lost loads."""
UNITS_PER_LOST = 2.0
"""Further units per lost one, times the ratio of a lost unit's cost to a good one's gain.

That is 4 further units at a share of one half, 10 at 0.8.
"""


def warm_up_units(rule: SequentialGateRule, unit_seconds: float) -> int:
    """Return the expected number of units of one server run that do not count."""
    if not rule.warm_up:
        return 0
    return max(rule.warm_up, math.ceil(WARM_UP_SECONDS / unit_seconds))


class SequentialGateRule(ServerRunRule):
    """Rule of a performance gate."""

    alpha: float = Field(gt=0, lt=0.5, description="error rate of a pass and of a fail")
    hit_rate: float | None = Field(None, description="declared by the workload")
    settled: int = Field(SETTLED, ge=0, description="units before any verdict if servers stay up")
    must_count_hits: bool = Field(
        False, description="even if no hits are declared: prompts of a file may share a prefix"
    )

    @property
    @abstractmethod
    def unit(self) -> str:
        pass

    @property
    @abstractmethod
    def cap(self) -> int: ...

    @property
    @abstractmethod
    def required_share(self) -> float:
        pass

    @property
    def level(self) -> float:
        return self.alpha

    @abstractmethod
    def invalid_reasons(self, loads: Sequence[LoadRun]) -> tuple[InvalidReason, ...]:
        pass

    @abstractmethod
    def margins(self, loads: Sequence[LoadRun]) -> FloatArray:
        """Return the margin of every unit, including the warm-up: [warm-up + n], finite."""

    @abstractmethod
    def sides(self, margins: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return each unit's distances on the passing and failing side: [..., n] each."""

    @abstractmethod
    def describe(
        self, margins: FloatArray, slack: FloatArray, continued: Sequence[int]
    ) -> tuple[FloatArray, float | None, float | None]:
        """Return the estimate after each counted unit, and both bounds; lost units are nan."""

    def slack(self, loads: Sequence[LoadRun]) -> FloatArray:
        """Return how far the client's lag may shift each margin down and up: [2, n]."""
        import numpy as np

        return np.zeros((2, len(self.margins(loads))))

    def client_lag_reason(self, loads: Sequence[LoadRun]) -> InvalidReason:
        return client_lag_reason(max(loads, key=lambda load: load.client_lag_s or 0.0))

    @abstractmethod
    def drift(self, loads: Sequence[LoadRun]) -> InvalidReason:
        pass

    def state(self, loads: Sequence[LoadRun]) -> State:
        return self.evaluate(loads).state

    def needs_more(self, loads: Sequence[LoadRun]) -> bool:
        found = self.evaluate(loads)
        return found.state == "open" and found.n < found.most and self.fits_evidence(loads)

    def evaluate(self, loads: Sequence[LoadRun]) -> SpeedTestResult:
        """Decide from the units, in the order of measuring."""
        import numpy as np

        causes = self.invalid_reasons(loads)
        if ended := final_reasons(causes):
            return SpeedTestResult("invalid", invalid_reasons=ended)
        units = self.units(loads)
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
        for first in self.continuation_starts(units):
            run[first:] += 1
        found = self.evaluate_margins(*self._insert_lost_runs(loads, margins, counted, slack, run))
        if found.state == "pass" and (words := self.withhold_reason(loads)) is not None:
            found = replace(found, state="open", decided_at=None, p_value=1.0, withheld=words)
        late = [self.client_lag_reason(units[place]) for place in np.flatnonzero(straddles)]
        voided = tuple(sorted([*causes, *late], key=lambda reason: reason.block))
        lost = (is_void & counted) | straddles
        seconds = sum(
            load.seconds for place in np.flatnonzero(is_void | straddles) for load in units[place]
        )
        spent = seconds > len(self.began) * LOST_SECONDS or lasting(faults, len(self.began))
        return self._within_budget(found, sound, voided, int(lost.sum()), spent=spent)

    @abstractmethod
    def withhold_reason(self, loads: Sequence[LoadRun]) -> str | None:
        """Return why the gate stays open although its units would pass it, if so."""

    def counted_loads(self, loads: Sequence[LoadRun]) -> list[LoadRun]:
        units = self.units(loads)
        faults = _by_unit(self.invalid_reasons(loads), units)
        return [
            load
            for unit, counts, found in zip(units, self.count(loads), faults, strict=True)
            if counts and not found
            for load in unit
        ]

    @property
    def min_units(self) -> int:
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
        # A run that continues starts its own bet, so it has as many units as the first.
        cap, drifts = len(self.began) * self.cap, found.state == "invalid"
        for_lost = math.ceil(UNITS_PER_LOST / (1 - self.required_share) * lost)
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

    def _straddles(self, margins: FloatArray, slack: FloatArray) -> NDArray[np.bool_]:
        measured = [side > 0 for side in self.sides(margins)]
        certain = [side > 0 for side in self._sure_sides(margins, slack)]
        return (measured[0] | measured[1]) & ~(certain[0] | certain[1])

    def _sure_sides(self, margins: FloatArray, slack: FloatArray) -> tuple[FloatArray, FloatArray]:
        for_it, against = self.sides(margins)
        return for_it - slack[0], against - slack[1]

    @property
    def warm_up(self) -> int:
        return 0 if self.server_mode == "interleaved" else WARM_UP

    def count(self, loads: Sequence[LoadRun]) -> NDArray[np.bool_]:
        """Return which units count, after their run's warm-up; [warm-up + n]."""
        import numpy as np

        if not self.warm_up:
            blocks = len({load.block for load in loads})
            return np.ones(blocks // self.loads_per_server_run, dtype=bool)
        units = list({load.block: load for load in reversed(loads)}.values())[::-1]
        runs = [unit.server_run for unit in units]
        places = [runs[:number].count(run) for number, run in enumerate(runs)]
        waited = [unit.started - units[runs.index(unit.server_run)].started for unit in units]
        counts = (np.array(places, dtype=int) >= self.warm_up) & (
            np.array(waited) >= WARM_UP_SECONDS
        )
        if self.server_mode == "swapped":
            both = [before and after for before, after in self.pair_swapped(counts.tolist())]
            return np.array(both, dtype=bool)
        return counts

    def counted_blocks(self, loads: Sequence[LoadRun]) -> set[int]:
        """Return the numbers of the blocks or rounds after the warm-up."""
        units = zip(self.units(loads), self.count(loads), strict=True)
        return {load.block for unit, counts in units if counts for load in unit}

    def _insert_lost_runs(
        self,
        loads: Sequence[LoadRun],
        margins: FloatArray,
        counted: NDArray[np.bool_],
        slack: FloatArray,
        run: NDArray[np.int_],
    ) -> tuple[FloatArray, NDArray[np.bool_], FloatArray, NDArray[np.int_]]:
        """Insert a void unit per lost server run: ending bad runs must gain nothing."""
        import numpy as np

        if not counted.any():
            return margins, counted, slack, run
        lost = self.count_lost_runs(loads)
        # Not before the first unit that counts, where the estimate begins.
        after = int(counted.argmax()) + 1
        places = np.maximum(np.repeat(np.arange(len(lost)), lost), after)
        return (
            np.insert(margins, places, np.nan),
            np.insert(counted, places, True),
            np.insert(slack, places, 0.0, axis=1),
            np.insert(run, places, run[np.minimum(places, run.size - 1)]),
        )

    def evaluate_margins(
        self,
        margins: FloatArray,
        counted: NDArray[np.bool_] | None = None,
        slack: FloatArray | None = None,
        run: NDArray[np.int_] | None = None,
    ) -> SpeedTestResult:
        """Decide from margins of units, including the warm-up.

        Args:
            margins: in the order of measuring; nan for a lost server run and a void unit.
            counted: which of them count; None: one server run, all after its warm-up.
            run: number of each unit's run, from 0; None: a single run.
        """
        import numpy as np

        if counted is None:
            counted = np.arange(margins.size) >= self.warm_up
        slack = np.zeros((2, margins.size)) if slack is None else slack
        places, known = np.flatnonzero(counted), ~np.isnan(margins[counted])
        if not known.any():
            return SpeedTestResult("open", n=int(places.size))
        counting, unit_slack = margins[places], slack[:, places]
        unit_run = np.zeros(places.size, dtype=int) if run is None else run[places]
        continued = [int((unit_run < number).sum()) for number in range(1, int(unit_run.max()) + 1)]
        for_it, against = self._sure_sides(counting, unit_slack)
        passing = log_evidence(for_it > 0, self.required_share, continued)
        failing = log_evidence(against > 0, 1 - self.required_share, continued)
        state, at = self._decide(margins, places, passing, failing)
        estimates, lower, upper = self.describe(counting, unit_slack, continued)
        evidence = 0.0 if state == "invalid" else float(np.maximum(0.0, passing.max()))
        return SpeedTestResult(
            state=state,
            n=int(counting.size),
            decided_at=at,
            estimate=float(estimates[-1]),
            lower=lower,
            upper=upper,
            p_value=min(1.0, math.exp(-evidence) + self.alpha - self.level),
            e_process=_e_process_path(estimates, passing, failing),
        )

    def log_evidence(self, margins: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the evidence for and against a pass after each unit: [..., n] each."""
        for_it, against = self.sides(margins)
        return log_evidence(for_it > 0, self.required_share), log_evidence(
            against > 0, 1 - self.required_share
        )

    def _decide(
        self,
        margins: FloatArray,
        places: NDArray[np.int_],
        passing: FloatArray,
        failing: FloatArray,
    ) -> tuple[State, int | None]:
        import numpy as np

        needed = -math.log(self.level)
        enough: NDArray[np.bool_] = (passing >= needed) | (failing >= needed)
        for_it, against = self.sides(margins)
        settled = np.cumsum(~np.isnan(margins))[places] >= (self.settled if self.warm_up else 0)
        for number in np.flatnonzero(enough & settled):
            seen = slice(int(places[number]) + 1)
            if failing[number] >= needed and not would_reverse(_known(against[seen])):
                return "fail", int(number) + 1
            if passing[number] >= needed and not would_reverse(_known(for_it[seen])):
                return "pass", int(number) + 1
        drifts = bool(enough.any()) and enough.size >= self.cap
        return ("invalid" if drifts else "open"), None


def _by_unit(
    causes: Iterable[InvalidReason], units: Sequence[Sequence[LoadRun]]
) -> list[list[InvalidReason]]:
    unit_of = {load.block: number for number, unit in enumerate(units) for load in unit}
    found: list[list[InvalidReason]] = [[] for _ in units]
    for cause in causes:
        if cause.block in unit_of:  # else the other half of its unit is not measured yet
            found[unit_of[cause.block]].append(cause)
    return found


def _known(margins: FloatArray) -> FloatArray:
    import numpy as np

    return margins[~np.isnan(margins)]


def _e_process_path(
    estimates: FloatArray, passing: FloatArray, failing: FloatArray
) -> tuple[EProcessPoint, ...]:
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
