"""Limits on latencies, decided from whole rounds: each meets all of them, or it does not.

Requests of one server are not independent, so nothing is concluded from them: a round starts from
a drained server with prompts and arrivals of its own, and gives one 0 or 1. The claim is that at
least a share q of all such rounds keeps the limits. Nothing is assumed but that rounds are
independent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from eval_gates.speed.drift import medians_of_halves
from eval_gates.speed.invalid_reasons import (
    InvalidReason,
    distrusted,
    drafted_in,
    drifting,
    failures,
    flow,
    over_saturated,
    too_few,
    too_short,
    undrafted,
    unlike,
)
from eval_gates.speed.load_run import LoadRun
from eval_gates.speed.proportion_test import surely_more_than
from eval_gates.speed.rounds import is_too_short
from eval_gates.speed.sequential_rule import SequentialGateRule
from eval_gates.speed.steady_state import NoSteadyStateError, latencies
from eval_gates.speed.throughput_ratio import paired

if TYPE_CHECKING:
    from eval_gates.speed.proportion_test import FloatArray

FAR = 50.0
"""The largest margin, of ln(limit / time): of a round with a failed request it is below 0."""
LEAST = 1e-12
SUSTAINED = 0.05
"""Of the requests that came in all rounds: with so many left over a rate is not sustained."""


class SloRule(SequentialGateRule):
    """What decides whether enough rounds keep the limits."""

    limits: dict[str, float] = Field(description="by name, such as ttft_ms_p95, or errors")
    compare: Literal["absolute", "baseline"] = "absolute"
    slo_attainment: float = Field(gt=0, lt=1, description="of all rounds, that is claimed")
    rounds: int = Field(ge=1, description="at most")
    min_acceptance_length: float | None = Field(
        None, ge=1, description="tokens that a step with drafts gives at least, in each round"
    )

    @property
    def unit(self) -> str:
        """What it counts."""
        return "rounds"

    @property
    def cap(self) -> int:
        """The most rounds."""
        return self.rounds

    @property
    def claimed(self) -> float:
        """As the policy says."""
        return self.slo_attainment

    def margins(self, loads: Sequence[LoadRun]) -> FloatArray:
        """ln(limit / time) of each round's tightest limit, below 0 where it does not keep all.

        nan of a round that was too short for its answers: it speaks for neither side, so the
        length of a round, which depends on its answers, gives nobody a further chance.

        Of acceptance by speculative decoding it is ln(accepted length / claimed one).

        Raises:
            ValueError: a round lacks a side, or is of the wrong one.
        """
        import numpy as np

        if self.compare == "absolute":
            if any(load.side != "candidate" for load in loads):
                raise ValueError("a round of absolute limits is of the candidate alone")
            found = [self._margin(load, self.limits) for load in loads]
        else:
            found = [
                math.nan
                if _is_unfit(baseline)
                else self._margin(candidate, self._limits_after(baseline))
                for baseline, candidate in paired(loads)
            ]
        return np.array(found, dtype=float)

    def sides(self, margins: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Kept, and not kept."""
        return margins, -margins

    def describe(
        self, margins: FloatArray, slack: FloatArray, continued: Sequence[int]
    ) -> tuple[FloatArray, float | None, float | None]:
        """The share of rounds that kept the limits, after each; its bounds."""
        import numpy as np

        kept = margins > 0
        shares = np.cumsum(kept) / np.maximum(1, np.cumsum(~np.isnan(margins)))
        return (
            shares,
            surely_more_than(kept, self.level, continued),
            1 - surely_more_than(margins <= 0, self.level, continued),
        )

    def met_slo(self, loads: Sequence[LoadRun]) -> list[bool]:
        """Whether each round keeps all limits; one that is over-saturated does not.

        Raises:
            ValueError: a round lacks a side, or is of the wrong one.
        """
        return [bool(margin > 0) for margin in self.margins(loads)]

    def drift(self, loads: Sequence[LoadRun]) -> InvalidReason:
        """Of the candidate's times over their limits."""
        import numpy as np

        margins = self.margins(loads)
        before, now = medians_of_halves(margins[~np.isnan(margins)])
        last = [load for load in loads if load.side == "candidate"][-1]
        words = f"its times over their limits were {math.exp(before - now):.3g} times as long"
        return drifting(last, words)

    def left_over(self, loads: Sequence[LoadRun]) -> float | None:
        """Share of the candidate's requests that came in rounds and were not answered in them.

        Less those of earlier times that were. None: none came.
        """
        flows = [flow(load) for load in self.counting(loads) if load.side == "candidate"]
        came = sum(each for each, _ in flows)
        return 1 - sum(each for _, each in flows) / came if came else None

    def withholds(self, loads: Sequence[LoadRun]) -> str | None:
        """A rate that is not sustained has no latencies: they are as long as one measures."""
        left = self.left_over(loads)
        if left is None or left < SUSTAINED:
            return None
        return "the rate is not sustained"

    def shares_within(self, loads: Sequence[LoadRun]) -> dict[str, float]:
        """Share of all the candidate's requests of rounds that count within each latency limit."""
        counting = self.counting(loads)
        if self.compare == "absolute":
            rounds = [(load, self.limits) for load in counting]
        else:
            rounds = [(load, self._limits_after(before)) for before, load in paired(counting)]
        found = {name: [0, 0] for name in self.limits if name != "errors"}
        for load, limits in rounds:
            try:
                times = latencies(load)
            except NoSteadyStateError:
                continue
            for name, kept_of in found.items():
                values = getattr(times, name.rpartition("_p")[0])
                kept_of[0] += int((values <= limits[name]).sum())
                kept_of[1] += values.size + times.failed
        return {name: kept / of for name, (kept, of) in found.items() if of}

    def _limits_after(self, baseline: LoadRun) -> dict[str, float]:
        before = figures(baseline, self.limits) | {"errors": 1.0}
        return {name: limit * before[name] for name, limit in self.limits.items()}

    def _margin(self, load: LoadRun, limits: Mapping[str, float]) -> float:
        found = figures(load, limits)
        if _is_unfit(load):
            return math.nan
        if over_saturated(load) or found["errors"] > limits.get("errors", 0.0):
            return -FAR
        margins = [_log_margin(found[name], limits[name]) for name in limits if name != "errors"]
        if self.min_acceptance_length is not None:
            drafted = drafted_in(load)
            length = drafted.length if drafted is not None else None
            # Of what was not drafted nothing is accepted.
            margins.append(_log_margin(self.min_acceptance_length, length or 0.0))
        return min(margins, default=FAR)

    def distrusted(self, loads: Sequence[LoadRun]) -> tuple[InvalidReason, ...]:
        """Each load, and each pair that was not asked the same."""
        judged = None
        if self.compare == "absolute":
            # A token that is late by a little hardly shows in the mean over an answer.
            times = [v for n, v in self.limits.items() if n.startswith(("ttft_ms", "latency_ms"))]
            judged = min(times) / 1e3 if times else None
        causes = distrusted(
            loads, declared=self.hit_rate, judged_s=judged, must_count=self.must_count_hits
        )
        uncounted = [
            cause
            for load in loads
            for cause in undrafted(load)
            if self.min_acceptance_length is not None
        ]
        pairs = paired(loads) if self.compare == "baseline" else []
        percentiles = [int(name.rpartition("_p")[2]) for name in self.limits if name != "errors"]
        short = [too_short(load) for load in loads if _is_unfit(load)]
        faulty = {(each.side, each.block) for each in (*causes, *short)}
        few = [
            each
            for load in loads
            if (load.side, load.block) not in faulty
            for each in too_few(load, percentiles)
        ]
        return (
            *causes,
            *short,
            *few,
            *uncounted,
            *failures([baseline for baseline, _ in pairs]),
            *(cause for pair in pairs for cause in unlike(*pair)),
        )


def _is_unfit(load: LoadRun) -> bool:
    """Whether a round is too short for its answers; those of an over-saturated one are no measure.

    An over-saturated round keeps no limit, however long it is.
    """
    return is_too_short(load) and not over_saturated(load)


def _log_margin(time: float, limit: float) -> float:
    """ln(limit / time), within `FAR` and never 0: at the limit is kept."""
    if not (math.isfinite(time) and math.isfinite(limit)):
        # Of a side without such a time nothing is known, and no multiple of it is a limit.
        return -FAR
    size = abs(math.log(limit / time)) if limit > 0 and time > 0 else FAR
    size = min(FAR, max(LEAST, size))
    return size if time <= limit else -size


def figures(load: LoadRun, names: Iterable[str]) -> dict[str, float]:
    """Percentiles in milliseconds by their names, and `errors`: failed requests of the load.

    A percentile of nothing is infinite: a round in which no request was answered keeps no limit.
    So is the time of a request that failed, where `errors` allows some: refusing is not fast.
    """
    import numpy as np

    found = {"errors": float(sum(error is not None for error in load.requests.error))}
    try:
        measured = latencies(load)
    except NoSteadyStateError:
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
