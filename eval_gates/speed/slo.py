"""Limits on latencies, decided from whole rounds: each meets all of them, or it does not.

Requests of one server are not independent, so nothing is concluded from them: a round starts from
a drained server with prompts and arrivals of its own, and gives one 0 or 1. The claim is that at
least a share q of all such rounds keeps the limits. A bet over 0 and 1 decides it after any round,
its mirror decides that fewer do; no assumption but that rounds are independent (see betting.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from eval_gates.speed.finding import SpeedFinding, State
from eval_gates.speed.lives import RuleOfLives
from eval_gates.speed.load import MeasuredLoad
from eval_gates.speed.ratio import first_crossing, paired, trail_of
from eval_gates.speed.steady import NoSteadyPartError, latencies
from eval_gates.speed.trust import (
    Distrust,
    distrusted,
    drafted_in,
    failures,
    over_saturated,
    undrafted,
    unlike,
)
from eval_gates.statistics.betting import log_wealth

if TYPE_CHECKING:
    from eval_gates.speed.symmetry import FloatArray

PLANNED_BET = 0.9
"""Has half of the stake: near the largest, since a server with headroom keeps every round."""


class SloRule(RuleOfLives):
    """What decides whether enough rounds keep the limits."""

    limits: dict[str, float] = Field(description="by name, such as ttft_ms_p95, or errors")
    compare: Literal["absolute", "baseline"] = "absolute"
    share: float = Field(gt=0, lt=1, description="of all rounds, that is claimed")
    alpha: float = Field(gt=0, lt=0.5, description="error rate of a pass, and of a fail")
    rounds: int = Field(ge=1, description="at most")
    hit_rate: float | None = Field(None, description="that the workload declares")
    acceptance: float | None = Field(
        None, ge=1, description="tokens that a step with drafts gives at least, in each round"
    )

    unit: ClassVar[str] = "rounds"

    @property
    def cap(self) -> int:
        """The most rounds."""
        return self.rounds

    def state(self, loads: Sequence[MeasuredLoad]) -> State:
        """What the loads so far decide."""
        return self.finding(loads).state

    def wants_more(self, loads: Sequence[MeasuredLoad]) -> bool:
        """Whether another round could decide it: open, below the cap, and trusted."""
        found = self.finding(loads)
        return found.state == "open" and found.n < self.rounds

    def finding(self, loads: Sequence[MeasuredLoad]) -> SpeedFinding:
        """Judge the rounds, in the order of measuring.

        Raises:
            ValueError: a round lacks a side, or is of the wrong one.
        """
        refused = self._distrusted(loads)
        if refused or not loads:
            return SpeedFinding(
                "refused" if refused else "open", 0, None, None, None, None, 1.0, (), refused
            )
        return self.finding_of(self.kept(loads))

    def finding_of(self, kept: Sequence[bool]) -> SpeedFinding:
        """Judge whether each round kept the limits: at least one."""
        import numpy as np

        rounds = np.asarray(kept, dtype=float)
        passing, failing = self.log_evidence(rounds)
        state, at = first_crossing(passing, failing, self.alpha)
        shares = np.cumsum(rounds) / np.arange(1, rounds.size + 1)
        return SpeedFinding(
            state=state,
            n=int(rounds.size),
            decided_at=at,
            estimate=float(shares[-1]),
            lower=share_bound(rounds, self.alpha),
            upper=1 - share_bound(1 - rounds, self.alpha),
            p_value=min(1.0, math.exp(-float(passing[-1]))),
            trail=trail_of(shares, passing, failing),
        )

    def log_evidence(self, rounds: FloatArray) -> tuple[FloatArray, FloatArray]:
        """For a larger share than claimed, and for a smaller: [..., n] each, largest so far."""
        import numpy as np

        passing = log_wealth(rounds, self.share, None, PLANNED_BET)
        failing = log_wealth(1 - rounds, 1 - self.share, None, PLANNED_BET)
        running = np.maximum.accumulate
        return (
            np.maximum(0.0, running(passing, axis=-1)),
            np.maximum(0.0, running(failing, axis=-1)),
        )

    def kept(self, loads: Sequence[MeasuredLoad]) -> list[bool]:
        """Whether each round keeps all limits; one that is over-saturated does not.

        Raises:
            ValueError: a round lacks a side, or is of the wrong one.
        """
        if self.compare == "absolute":
            if any(load.side != "candidate" for load in loads):
                raise ValueError("a round of absolute limits is of the candidate alone")
            return [self._keeps(load, self.limits) for load in loads]
        return [
            self._keeps(candidate, self._limits_after(baseline))
            for baseline, candidate in paired(loads)
        ]

    def _limits_after(self, baseline: MeasuredLoad) -> dict[str, float]:
        before = figures(baseline, self.limits) | {"errors": 1.0}
        return {name: limit * before[name] for name, limit in self.limits.items()}

    def _keeps(self, load: MeasuredLoad, limits: Mapping[str, float]) -> bool:
        found = figures(load, limits)
        if over_saturated(load) or not self._drafts_well(load):
            return False
        return all(
            # Of a side without such a time nothing is known, and no multiple of it is a limit.
            math.isfinite(found[name]) and math.isfinite(limit) and found[name] <= limit
            for name, limit in {"errors": 0.0, **limits}.items()
        )

    def _drafts_well(self, load: MeasuredLoad) -> bool:
        """Whether enough is accepted of what is drafted; not where nothing was."""
        if self.acceptance is None:
            return True
        drafted = drafted_in(load)
        length = drafted.length if drafted is not None else None
        return length is not None and length >= self.acceptance

    def _distrusted(self, loads: Sequence[MeasuredLoad]) -> tuple[Distrust, ...]:
        judged = None
        if self.compare == "absolute":
            # A token that is late by a little hardly shows in the mean over an answer.
            times = [v for n, v in self.limits.items() if n.startswith(("ttft_ms", "latency_ms"))]
            judged = min(times) / 1e3 if times else None
        causes = distrusted(loads, declared=self.hit_rate, judged_s=judged)
        uncounted = [
            cause for load in loads for cause in undrafted(load) if self.acceptance is not None
        ]
        pairs = paired(loads) if self.compare == "baseline" else []
        return (
            *causes,
            *uncounted,
            *failures([baseline for baseline, _ in pairs]),
            *(cause for pair in pairs for cause in unlike(*pair)),
        )


def figures(load: MeasuredLoad, names: Iterable[str]) -> dict[str, float]:
    """Percentiles in milliseconds by their names, and `errors`: failed requests of the load.

    A percentile of nothing is infinite: a round in which no request was answered keeps no limit.
    So is the time of a request that failed, where `errors` allows some: refusing is not fast.
    """
    import numpy as np

    found = {"errors": float(sum(error is not None for error in load.requests.error))}
    try:
        measured = latencies(load)
    except NoSteadyPartError:
        measured = None
    for name in names:
        if name == "errors":
            continue
        what, _, percentile = name.rpartition("_p")
        values = getattr(measured, what) if measured is not None else np.empty(0)
        failed = measured.failed if measured is not None else 0
        found[name] = percentile_of(values, failed, int(percentile))
    return found


def percentile_of(values: FloatArray, failed: int, percentile: int) -> float:
    """Of the times with so many infinite ones; infinite, too, where there is none."""
    import numpy as np

    if not values.size:
        return math.inf
    # Between a time and infinity nothing can be interpolated.
    method: Literal["linear", "inverted_cdf"] = "inverted_cdf" if failed else "linear"
    times = np.append(values, np.full(failed, np.inf))
    return float(np.percentile(times, percentile, method=method))


def share_bound(rounds: FloatArray, alpha: float) -> float:
    """The smallest share that was never rejected by rounds of 0 and 1; valid at any time."""
    needed = -math.log(alpha)

    def rejected(share: float) -> bool:
        return bool(log_wealth(rounds, share, None, PLANNED_BET).max() >= needed)

    low, high = 0.0, float(rounds.mean())
    if not rejected(1e-9):
        return 0.0
    for _ in range(40):
        half = (low + high) / 2
        low, high = (half, high) if rejected(half) else (low, half)
    return low
