"""How blocks and rounds decide a claim: each lies on one side of it, and a bet counts the sides.

Every unit gives one margin: how far it is on the claim's side, negative on the other. The first
`WARM_UP` units of servers that stay up count for nothing, but are kept, and show what comes after
them whether it drifts.
Then the claim is that margins are positive in at least a share of all units (see share.py). It is
decided at the first unit after which the evidence suffices and its side is not being left: of
margins that run towards the other side nothing is said of the next ones (see drift.py). While they
do, measuring goes on; if they still do at the cap, the claim is refused.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pydantic import Field

from eval_gates.records import TrailPoint
from eval_gates.speed.drift import undoes
from eval_gates.speed.finding import SpeedFinding, State
from eval_gates.speed.lives import RuleOfLives
from eval_gates.speed.load import MeasuredLoad
from eval_gates.speed.share import log_evidence
from eval_gates.speed.trust import Distrust

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from eval_gates.speed.share import FloatArray

WARM_UP = 2
"""Units of one life of the servers that are measured before the first that counts."""


class UnitRule(RuleOfLives):
    """What decides a claim on speed."""

    alpha: float = Field(gt=0, lt=0.5, description="error rate of a pass, and of a fail")
    hit_rate: float | None = Field(None, description="that the workload declares")
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
    def distrusted(self, loads: Sequence[MeasuredLoad]) -> tuple[Distrust, ...]:
        """Why the loads are not what the claim is about."""

    @abstractmethod
    def margins(self, loads: Sequence[MeasuredLoad]) -> FloatArray:
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
    def describe(self, margins: FloatArray) -> tuple[FloatArray, float | None, float | None]:
        """The estimate after each of the units that count, and both bounds."""

    @abstractmethod
    def drift(self, loads: Sequence[MeasuredLoad]) -> Distrust:
        """Which side of loads that drift does, and how far."""

    def state(self, loads: Sequence[MeasuredLoad]) -> State:
        """What the loads so far decide."""
        return self.finding(loads).state

    def wants_more(self, loads: Sequence[MeasuredLoad]) -> bool:
        """Whether another unit could decide it: open, below the cap, trusted, and with room."""
        found = self.finding(loads)
        return found.state == "open" and found.n < self.cap and self.has_room(loads)

    def finding(self, loads: Sequence[MeasuredLoad]) -> SpeedFinding:
        """Judge the units, in the order of measuring.

        Raises:
            ValueError: a unit lacks a side, or is of the wrong one.
        """
        refused = self.distrusted(loads)
        if refused:
            return SpeedFinding("refused", refused=refused)
        found = self.finding_of(*self._with_lost_lives(loads))
        if found.state != "refused":
            return found
        return replace(found, refused=(self.drift(loads),))

    @property
    def warm_up(self) -> int:
        """Units that count for nothing; none where each life is of a server that was warmed up."""
        return 0 if self.lives == "alternate" else WARM_UP

    def count(self, loads: Sequence[MeasuredLoad]) -> NDArray[np.bool_]:
        """Which units count: not the first ones of a life; [warm-up + n]."""
        import numpy as np

        if not self.warm_up:
            blocks = len({load.block for load in loads})
            return np.ones(blocks // self.loads_per_life, dtype=bool)
        lives = list({load.block: load.life for load in loads}.values())
        places = [lives[:number].count(life) for number, life in enumerate(lives)]
        return np.array(places, dtype=int) >= self.warm_up

    def _with_lost_lives(
        self, loads: Sequence[MeasuredLoad]
    ) -> tuple[FloatArray, NDArray[np.bool_]]:
        """Margins and which count, with a unit that speaks for neither side for each lost life.

        Who could end those lives that look bad gains nothing: for either side such a unit counts
        as one that is not on it.
        """
        import numpy as np

        margins, counted = self.margins(loads), self.count(loads)
        if not counted.any():
            return margins, counted
        lost = self.lost_before(loads)
        # Not before the first unit that counts, which the estimate begins with.
        after = int(counted.argmax()) + 1
        places = np.maximum(np.repeat(np.arange(len(lost)), lost), after)
        return np.insert(margins, places, np.nan), np.insert(counted, places, True)

    def finding_of(
        self, margins: FloatArray, counted: NDArray[np.bool_] | None = None
    ) -> SpeedFinding:
        """Judge margins of units, those of the warm-up among them.

        Args:
            margins: in the order of measuring; of a lost life nan.
            counted: which of them count; None: of one life, all after its warm-up.

        Returns:
            what they say; where they drift, refused without words.
        """
        import numpy as np

        if counted is None:
            counted = np.arange(margins.size) >= self.warm_up
        places, counting = np.flatnonzero(counted), margins[counted]
        if not places.size:
            return SpeedFinding("open")
        passing, failing = self.log_evidence(counting)
        state, at = self._decide(margins, places, passing, failing)
        estimates, lower, upper = self.describe(counting)
        evidence = 0.0 if state == "refused" else float(np.maximum(0.0, passing.max()))
        return SpeedFinding(
            state=state,
            n=int(counting.size),
            decided_at=at,
            estimate=float(estimates[-1]),
            lower=lower,
            upper=upper,
            p_value=min(1.0, math.exp(-evidence) + self.alpha - self.level),
            trail=_trail(estimates, passing, failing),
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
        for number in np.flatnonzero(enough):
            seen = slice(int(places[number]) + 1)
            if failing[number] >= needed and not undoes(_known(against[seen])):
                return "fail", int(number) + 1
            if passing[number] >= needed and not undoes(_known(for_it[seen])):
                return "pass", int(number) + 1
        drifts = bool(enough.any()) and enough.size >= self.cap
        return ("refused" if drifts else "open"), None


def _known(margins: FloatArray) -> FloatArray:
    import numpy as np

    return margins[~np.isnan(margins)]


def _trail(
    estimates: FloatArray, passing: FloatArray, failing: FloatArray
) -> tuple[TrailPoint, ...]:
    """The evidence after each unit, as powers of ten."""
    ten = math.log(10)
    return tuple(
        TrailPoint(
            n=number,
            mean=float(estimate),
            log10_e_pass=float(up) / ten,
            log10_e_fail=float(down) / ten,
        )
        for number, (estimate, up, down) in enumerate(
            zip(estimates, passing, failing, strict=True), start=1
        )
    )
