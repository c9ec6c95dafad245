"""Latency limits, decided from complete rounds: a round meets all limits or fails.

Requests of one server are dependent, so the unit of evidence is a round, on a drained server with
its own prompts and arrivals. The gate requires that at least a share q of all such rounds meets the
limits. The only assumption is that rounds are independent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from eval_gates.speed.drift import half_medians
from eval_gates.speed.invalid_reasons import (
    InvalidReason,
    count_drafts,
    count_flow,
    drift_reason,
    find_failed_requests,
    find_invalid_reasons,
    find_side_differences,
    find_too_few_requests,
    find_uncounted_drafts,
    is_over_saturated,
    short_rounds_reason,
)
from eval_gates.speed.load_run import LoadRun
from eval_gates.speed.proportion_test import proportion_lower_bound
from eval_gates.speed.rounds import is_too_short
from eval_gates.speed.sequential_rule import SequentialGateRule
from eval_gates.speed.steady_state import NoSteadyStateError, latencies
from eval_gates.speed.throughput_ratio import pair_sides

if TYPE_CHECKING:
    from eval_gates.speed.proportion_test import FloatArray

MAX_MARGIN = 50.0
"""Largest margin, as ln(limit / time); a round with a failed request has the negative."""
MIN_MARGIN = 1e-12
SUSTAINED = 0.05
"""Share of unanswered requests, over all rounds, from which on a rate is not sustained."""


class SloRule(SequentialGateRule):
    """Rule of an SLO: enough rounds meet the limits."""

    kind: Literal["slo"] = "slo"
    limits: dict[str, float] = Field(description="by name, such as ttft_ms_p95 or errors")
    compare: Literal["absolute", "baseline"] = "absolute"
    slo_attainment: float = Field(gt=0, lt=1, description="share of rounds that must meet limits")
    rounds: int = Field(ge=1, description="maximum")
    min_acceptance_length: float | None = Field(
        None, ge=1, description="minimum tokens per step with drafts, in each round"
    )

    @property
    def compares(self) -> bool:
        return self.compare == "baseline"

    @property
    def unit(self) -> str:
        return "rounds"

    @property
    def cap(self) -> int:
        return self.rounds

    @property
    def required_share(self) -> float:
        return self.slo_attainment

    def margins(self, loads: Sequence[LoadRun]) -> FloatArray:
        """Return ln(limit / time) of each round's tightest limit, below 0 if it misses one.

        A round that was too short for its answers has nan. For the acceptance of speculative
        decoding the margin is ln(accepted length / required length).
        """
        import numpy as np

        if self.compare == "absolute":
            if any(load.side != "candidate" for load in loads):
                raise ValueError("a round of absolute limits has the candidate alone")
            found = [self._margin(load, self.limits) for load in loads]
        else:
            found = [
                math.nan
                if _is_too_short(baseline)
                else self._margin(candidate, self._limits_after(baseline))
                for baseline, candidate in pair_sides(loads)
            ]
        return np.array(found, dtype=float)

    def sides(self, margins: FloatArray) -> tuple[FloatArray, FloatArray]:
        return margins, -margins

    def describe(
        self, margins: FloatArray, slack: FloatArray, continued: Sequence[int]
    ) -> tuple[FloatArray, float | None, float | None]:
        import numpy as np

        kept = margins > 0
        shares = np.cumsum(kept) / np.maximum(1, np.cumsum(~np.isnan(margins)))
        return (
            shares,
            proportion_lower_bound(kept, self.level, continued),
            1 - proportion_lower_bound(margins <= 0, self.level, continued),
        )

    def met_slo(self, loads: Sequence[LoadRun]) -> list[bool]:
        return [bool(margin > 0) for margin in self.margins(loads)]

    def drift(self, loads: Sequence[LoadRun]) -> InvalidReason:
        import numpy as np

        margins = self.margins(loads)
        before, now = half_medians(margins[~np.isnan(margins)])
        last = [load for load in loads if load.side == "candidate"][-1]
        words = f"its times over their limits were {math.exp(before - now):.3g} times as long"
        return drift_reason(last, words)

    def left_over(self, loads: Sequence[LoadRun]) -> float | None:
        """Return the unanswered share of the candidate's arrivals; None without any."""
        flows = [count_flow(load) for load in self.counted_loads(loads) if load.side == "candidate"]
        arrived = sum(arrivals for arrivals, _ in flows)
        return 1 - sum(answers for _, answers in flows) / arrived if arrived else None

    def withhold_reason(self, loads: Sequence[LoadRun]) -> str | None:
        left = self.left_over(loads)
        if left is None or left < SUSTAINED:
            return None
        return "the rate is not sustained"

    def shares_within(self, loads: Sequence[LoadRun]) -> dict[str, float]:
        counted_loads = self.counted_loads(loads)
        if self.compare == "absolute":
            rounds = [(load, self.limits) for load in counted_loads]
        else:
            rounds = [
                (load, self._limits_after(before)) for before, load in pair_sides(counted_loads)
            ]
        found = {name: [0, 0] for name in self.limits if name != "errors"}
        for load, limits in rounds:
            try:
                times = latencies(load)
            except NoSteadyStateError:
                continue
            for name, counts in found.items():
                values = getattr(times, name.rpartition("_p")[0])
                counts[0] += int((values <= limits[name]).sum())
                counts[1] += values.size + times.failed
        return {name: met / total for name, (met, total) in found.items() if total}

    def _limits_after(self, baseline: LoadRun) -> dict[str, float]:
        before = percentiles(baseline, self.limits) | {"errors": 1.0}
        return {name: limit * before[name] for name, limit in self.limits.items()}

    def _margin(self, load: LoadRun, limits: Mapping[str, float]) -> float:
        found = percentiles(load, limits)
        if _is_too_short(load):
            return math.nan
        if is_over_saturated(load) or found["errors"] > limits.get("errors", 0.0):
            return -MAX_MARGIN
        margins = [_log_margin(found[name], limits[name]) for name in limits if name != "errors"]
        if self.min_acceptance_length is not None:
            drafted = count_drafts(load)
            length = drafted.length if drafted is not None else None
            # Without drafts nothing is accepted.
            margins.append(_log_margin(self.min_acceptance_length, length or 0.0))
        return min(margins, default=MAX_MARGIN)

    def invalid_reasons(self, loads: Sequence[LoadRun]) -> tuple[InvalidReason, ...]:
        judged = None
        if self.compare == "absolute":
            # The client's lag hardly changes a mean over an answer's tokens.
            times = [v for n, v in self.limits.items() if n.startswith(("ttft_ms", "latency_ms"))]
            judged = min(times) / 1e3 if times else None
        causes = find_invalid_reasons(
            loads, declared=self.hit_rate, judged_s=judged, must_count=self.must_count_hits
        )
        uncounted = [
            cause
            for load in loads
            for cause in find_uncounted_drafts(load)
            if self.min_acceptance_length is not None
        ]
        pairs = pair_sides(loads) if self.compare == "baseline" else []
        percentiles = [int(name.rpartition("_p")[2]) for name in self.limits if name != "errors"]
        short = [short_rounds_reason(load) for load in loads if _is_too_short(load)]
        faulty = {(reason.side, reason.block) for reason in (*causes, *short)}
        few = [
            each
            for load in loads
            if (load.side, load.block) not in faulty
            for each in find_too_few_requests(load, percentiles)
        ]
        return (
            *causes,
            *short,
            *few,
            *uncounted,
            *find_failed_requests([baseline for baseline, _ in pairs]),
            *(cause for pair in pairs for cause in find_side_differences(*pair)),
        )


def _is_too_short(load: LoadRun) -> bool:
    return is_too_short(load) and not is_over_saturated(load)


def _log_margin(time: float, limit: float) -> float:
    """Return ln(limit / time), within `MAX_MARGIN` and never 0: a time at the limit meets it."""
    if not (math.isfinite(time) and math.isfinite(limit)):
        # A missing time is unknown, and no multiple of it is a limit.
        return -MAX_MARGIN
    size = abs(math.log(limit / time)) if limit > 0 and time > 0 else MAX_MARGIN
    size = min(MAX_MARGIN, max(MIN_MARGIN, size))
    return size if time <= limit else -size


def percentiles(load: LoadRun, names: Iterable[str]) -> dict[str, float]:
    """Return percentiles in milliseconds by name, and `errors`: the failed requests.

    A percentile without values is infinite. So is a failed request's time if `errors` allows
    failures.
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
        found[name] = percentile_with_failures(values, failed, int(percentile))
    return found


def percentile_with_failures(values: FloatArray, failed: int, percentile: int) -> float:
    """Return the percentile with `failed` infinite times; infinite without any time."""
    import numpy as np

    if not values.size:
        return math.inf
    # A time and infinity cannot be interpolated.
    method: Literal["linear", "inverted_cdf"] = "inverted_cdf" if failed else "linear"
    times = np.append(values, np.full(failed, np.inf))
    return float(np.percentile(times, percentile, method=method))
