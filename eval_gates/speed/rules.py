"""Rules of performance gates: Student's t over blocks of server starts.

A block has one load of each side, with the same prompts, in drawn order. It gives one value: the
logarithm of candidate over baseline (a ratio), or of limit over percentile (limits; the tightest of
several). The gate passes if the lower bound of the mean is above its threshold, and fails if the
upper bound is below. The number of quiet blocks is fixed, so there is one look.

A disturbance has a cause outside of the servers: another process on the GPU, throttling, a late
client. It is judged without the speed and without the side, and its block is measured again, at
most as often as there are blocks. The verdict must be the same with the disturbed blocks. Failed
requests and wrong hit rates are the side's own: the first is measured again, the second ends the
gate. Otherwise a server that fails now and then would be measured until it does not.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from pydantic import Field

from eval_gates.speed.invalid_reasons import (
    FaultKind,
    InvalidReason,
    count_flow,
    find_failed_requests,
    find_invalid_reasons,
    find_late_client,
    find_side_differences,
    find_too_few_requests,
    is_over_saturated,
    median_answer_s,
    short_rounds_reason,
)
from eval_gates.speed.load_run import LoadRun
from eval_gates.speed.rounds import is_too_short
from eval_gates.speed.server_runs import ServerRunRule
from eval_gates.speed.steady_state import (
    NoSteadyStateError,
    lag_gain,
    latencies,
    output_rate,
    percentiles,
)

State = Literal["pass", "fail", "open", "undecided", "invalid"]
"""open: not measured completely; invalid: the measurement shows nothing of these servers."""

DISTURBANCES: frozenset[FaultKind] = frozenset({"throttled", "other_process", "client_lag"})
OWN: frozenset[FaultKind] = frozenset({"failed_requests", "hit_rate", "too_short", "too_few"})
MAX_OWN = 2
"""Blocks with a fault of the same side that end the gate."""
MAX_LATE = 0.1
"""Share of a load's time, or of the limited time, by which the client may be late."""
MAX_LOG = 50.0
"""Largest ln(limit / time); a missing time has the negative."""
SUSTAINED = 0.05
"""Share of unanswered requests, over all loads, from which on a rate is not sustained."""
MAX_BEYOND = 1 / 6
"""Largest share of starts beyond a limit with which a gate passes."""


@dataclass(frozen=True)
class SpeedFinding:
    """Verdict and bounds; bounds are None with fewer than two quiet blocks."""

    state: State
    quiet: int = 0  # blocks that count
    estimate: float | None = None  # exp of the mean value
    lower: float | None = None  # at the rule's level
    upper: float | None = None
    interval: tuple[float, float] | None = None  # two-sided, 95 %
    p_value: float = 1.0
    with_disturbed: float | None = None  # the estimate over all complete blocks
    repeats: Mapping[str, int] = field(default_factory=dict)  # of blocks, by cause or side
    beyond: int = 0  # quiet starts beyond a limit
    faults: tuple[InvalidReason, ...] = ()  # of blocks that do not count, or why it is invalid
    why: str = ""  # what keeps the gate from its bounds' verdict


@dataclass
class _Blocks:
    quiet: list[Sequence[LoadRun]] = field(default_factory=list)
    disturbed: list[Sequence[LoadRun]] = field(default_factory=list)
    faults: list[InvalidReason] = field(default_factory=list)
    repeats: Counter[str] = field(default_factory=Counter)
    total: int = 0
    ended: tuple[State, str] | None = None


class SpeedRule(ServerRunRule):
    """Rule of a performance gate."""

    alpha: float = Field(gt=0, lt=0.5, description="error rate of a pass and of a fail")
    blocks: int = Field(ge=2, le=100, description="quiet blocks that decide")
    hit_rate: float | None = Field(None, description="declared by the workload")
    must_count_hits: bool = Field(
        False, description="even if no hits are declared: prompts of a file may share a prefix"
    )

    @property
    @abstractmethod
    def compares(self) -> bool:
        """Whether a block has a load of the baseline, too."""

    @property
    @abstractmethod
    def threshold(self) -> float:
        """What the estimate must exceed."""

    @property
    def unit(self) -> str:
        return "blocks" if self.compares else "loads"

    @property
    def cap(self) -> int:
        """Number of quiet blocks."""
        return self.blocks

    @abstractmethod
    def value(self, unit: Sequence[LoadRun]) -> float:
        """Return the block's value; NoSteadyStateError without one."""

    @abstractmethod
    def is_late(self, load: LoadRun) -> bool:
        """Return whether the client was too late; NoSteadyStateError if that is not known."""

    @abstractmethod
    def own_faults(self, unit: Sequence[LoadRun]) -> list[InvalidReason]:
        """Return faults of the sides themselves."""

    def worst_value(self, unit: Sequence[LoadRun]) -> float:
        """Return the least value that a punctual client could give; -inf if none is known."""
        return -math.inf

    def ends_early(self, unit: Sequence[LoadRun]) -> str:
        """Return why a quiet block fails the gate regardless of the others; '' if it does not."""
        return ""

    def withholds(self, quiet: Sequence[Sequence[LoadRun]]) -> str:
        """Return why the gate must not pass although its bound does; '' if nothing does."""
        return ""

    def units(self, loads: Sequence[LoadRun]) -> list[Sequence[LoadRun]]:
        """Return the loads of each complete block."""
        size = 2 if self.compares else 1
        return [loads[end - size : end] for end in range(size, len(loads) + 1, size)]

    def needs_more(self, loads: Sequence[LoadRun]) -> bool:
        blocks = self._sort(loads)
        return self._is_open(blocks) and self.fits_evidence(loads)

    def quiet_blocks(self, loads: Sequence[LoadRun]) -> list[Sequence[LoadRun]]:
        return self._sort(loads).quiet

    def state(self, loads: Sequence[LoadRun]) -> State:
        return self.evaluate(loads).state

    def evaluate(self, loads: Sequence[LoadRun]) -> SpeedFinding:
        """Decide from the loads, in the order of measuring."""
        blocks = self._sort(loads)
        faults, repeats = tuple(blocks.faults), dict(blocks.repeats)
        values = [self.value(unit) for unit in blocks.quiet]
        beyond = 0 if self.compares else sum(value < 0 for value in values)
        if blocks.ended is not None:
            state, why = blocks.ended
            return SpeedFinding(
                state, len(values), repeats=repeats, faults=faults, why=why, beyond=beyond
            )
        is_open = self._is_open(blocks) and self.fits_evidence(loads)
        if not is_open and (at_worst := self._at_worst(values, blocks)) is not None:
            return replace(at_worst, repeats=repeats, faults=faults)
        if len(values) < 2:
            state = "open" if is_open else "undecided"
            return SpeedFinding(state, len(values), repeats=repeats, faults=faults, beyond=beyond)
        found = self._decide(values)
        others = self._decide([*values, *map(self.value, blocks.disturbed)])
        state, why = found.state, ""
        if len(values) < self.blocks:
            state = "open" if is_open else "undecided"
            why = f"only {len(values)} of {self.blocks} {self.unit} were quiet"
        elif state == "pass" and (why := self.withholds(blocks.quiet)):
            state = "undecided"
        elif others.state != state:
            state = "undecided"
            why = f"with the disturbed {self.unit} the verdict would be another"
        return SpeedFinding(
            state=state,
            quiet=len(values),
            estimate=found.estimate,
            lower=found.lower,
            upper=found.upper,
            interval=found.interval,
            p_value=found.p_value if state == "pass" else max(found.p_value, self.alpha),
            with_disturbed=others.estimate if blocks.disturbed else None,
            repeats=repeats,
            beyond=beyond,
            faults=faults,
            why=why,
        )

    def _at_worst(self, values: Sequence[float], blocks: _Blocks) -> SpeedFinding | None:
        """Return the pass of all complete blocks, late ones at their worst; None without.

        No block is left out by its speed, so the level holds. What throttling or another process
        did to one side alone is not known.
        """
        worst = [*values, *map(self.worst_value, blocks.disturbed)]
        is_late_alone = all(fault.kind == "client_lag" for fault in blocks.faults)
        if not is_late_alone or len(values) >= self.blocks or len(worst) < self.blocks:
            return None
        if min(worst) == -math.inf:
            return None
        found = self._decide(worst)
        if found.state != "pass":
            return None
        why = f"{len(blocks.disturbed)} {self.unit} with a late client count at their worst"
        return replace(found, quiet=len(values), why=why)

    def _is_open(self, blocks: _Blocks) -> bool:
        return (
            blocks.ended is None
            and len(blocks.quiet) < self.blocks
            and blocks.total < 2 * self.blocks
        )

    def _decide(self, values: Sequence[float]) -> SpeedFinding:
        from eval_gates.statistics.paired_t import compare_mean

        limit = math.log(self.threshold)
        found = compare_mean(values, limit, self.alpha)
        state: State = "undecided"
        if found.lower > limit:
            state = "pass"
        elif found.upper < limit:
            state = "fail"
        low, high = found.interval
        return SpeedFinding(
            state,
            len(values),
            estimate=math.exp(found.mean),
            lower=math.exp(found.lower),
            upper=math.exp(min(found.upper, 2 * MAX_LOG)),
            interval=(math.exp(low), math.exp(min(high, 2 * MAX_LOG))),
            p_value=found.p_value,
        )

    def _sort(self, loads: Sequence[LoadRun]) -> _Blocks:
        found = _Blocks()
        own: Counter[str] = Counter()
        by_block: dict[int, list[InvalidReason]] = {}
        for reason in find_invalid_reasons(
            loads, declared=self.hit_rate, must_count=self.must_count_hits
        ):
            by_block.setdefault(reason.block, []).append(reason)
        for unit in self.units(loads):
            found.total += 1
            causes = [
                *by_block.get(unit[0].block, []),
                *(late for load in unit for late in find_late_client(load, self.is_late)),
                *self.own_faults(unit),
                *find_side_differences(unit),
            ]
            final = next((each for each in causes if each.kind not in DISTURBANCES | OWN), None)
            if final is not None:
                found.faults, found.ended = [final], ("invalid", str(final))
                return found
            outside = [cause for cause in causes if cause.kind in DISTURBANCES]
            if not causes:
                found.quiet.append(unit)
                if early := self.ends_early(unit):
                    found.ended = ("fail", early)
                    return found
            elif outside:
                found.faults += outside
                found.repeats["disturbed"] += 1
                if len(outside) == len(causes):
                    found.disturbed.append(unit)
            else:
                found.faults += causes
                for side in dict.fromkeys(cause.side for cause in causes):
                    own[side] += 1
                    found.repeats[side] += 1
                    if own[side] == MAX_OWN:
                        last = next(cause for cause in causes if cause.side == side)
                        found.ended = _end_of(side, last)
                        return found
        return found


def _end_of(side: str, fault: InvalidReason) -> tuple[State, str]:
    """Return the end of a gate by repeated faults of one side."""
    is_failure = side == "candidate" and fault.kind == "failed_requests"
    return "fail" if is_failure else "invalid", f"for the second time: {fault}"


class RatioRule(SpeedRule):
    """Rule of a throughput ratio: output tokens per second, candidate over baseline."""

    kind: Literal["ratio"] = "ratio"
    min_ratio: float = Field(gt=0, description="smallest acceptable ratio")

    @property
    def compares(self) -> bool:
        return True

    @property
    def threshold(self) -> float:
        return self.min_ratio

    def is_late(self, load: LoadRun) -> bool:
        # A late client slows both sides alike: of a difference it hides the share that it is late.
        return lag_gain(load) > max(MAX_LATE, min(0.5, (1 - self.min_ratio) / 2))

    def value(self, unit: Sequence[LoadRun]) -> float:
        rates = {load.side: output_rate(load) for load in unit}
        return math.log(rates["candidate"] / rates["baseline"])

    def worst_value(self, unit: Sequence[LoadRun]) -> float:
        # The candidate could only be faster, and the baseline by this at most.
        (baseline,) = (load for load in unit if load.side == "baseline")
        return self.value(unit) - lag_gain(baseline)

    def own_faults(self, unit: Sequence[LoadRun]) -> list[InvalidReason]:
        return find_failed_requests(unit)


class LimitRule(SpeedRule):
    """Rule of latency limits of the candidate's typical start."""

    kind: Literal["slo"] = "slo"
    limits: dict[str, float] = Field(description="by name, such as ttft_ms_p95 or errors")

    @property
    def compares(self) -> bool:
        return False

    @property
    def threshold(self) -> float:
        return 1.0

    def is_late(self, load: LoadRun) -> bool:
        # The client's lag hardly changes a mean over an answer's tokens.
        times = [v for n, v in self.limits.items() if n.startswith(("ttft_ms", "latency_ms"))]
        judged = min(times) / 1e3 if times else median_answer_s(load)
        lag = load.client_lag_s
        return judged is not None and (lag is None or lag > MAX_LATE * judged)

    def value(self, unit: Sequence[LoadRun]) -> float:
        """Return ln(limit / time) of the tightest limit, below 0 if the load misses one."""
        (load,) = unit
        found = percentiles(load, self.limits)
        names = [name for name in self.limits if name != "errors"]
        return min((_log_margin(found[n], self.limits[n]) for n in names), default=MAX_LOG)

    def own_faults(self, unit: Sequence[LoadRun]) -> list[InvalidReason]:
        (load,) = unit
        if is_over_saturated(load):
            return []  # its queue is the server's answer
        if is_too_short(load):
            return [short_rounds_reason(load)]
        names = [int(name.rpartition("_p")[2]) for name in self.limits if name != "errors"]
        return find_too_few_requests(load, names)

    def ends_early(self, unit: Sequence[LoadRun]) -> str:
        failed, allowed = _failed(unit), self.limits.get("errors", 0.0)
        return f"{failed} requests of a load failed, {allowed:g} may" if failed > allowed else ""

    def withholds(self, quiet: Sequence[Sequence[LoadRun]]) -> str:
        left = self.left_over([load for (load,) in quiet])
        if left is not None and left >= SUSTAINED:
            return "the rate is not sustained"
        beyond = sum(self.value(unit) < 0 for unit in quiet)
        if beyond > MAX_BEYOND * len(quiet):
            return f"{beyond} of {len(quiet)} {self.unit} were beyond a limit"
        return ""

    def left_over(self, loads: Iterable[LoadRun]) -> float | None:
        """Return the unanswered share of the arrivals; None without any."""
        flows = [count_flow(load) for load in loads]
        arrived = sum(arrivals for arrivals, _ in flows)
        return 1 - sum(answers for _, answers in flows) / arrived if arrived else None

    def shares_within(self, loads: Iterable[LoadRun]) -> dict[str, float]:
        """Return the share of all requests within each latency limit."""
        found = {name: [0, 0] for name in self.limits if name != "errors"}
        for load in loads:
            try:
                times = latencies(load)
            except NoSteadyStateError:
                continue
            for name, counts in found.items():
                values = getattr(times, name.rpartition("_p")[0])
                counts[0] += int((values <= self.limits[name]).sum())
                counts[1] += values.size + times.failed
        return {name: met / total for name, (met, total) in found.items() if total}


def _failed(unit: Sequence[LoadRun]) -> int:
    return sum(error is not None for load in unit for error in load.requests.error)


def _log_margin(time: float, limit: float) -> float:
    """Return ln(limit / time), within MAX_LOG; a missing time is beyond every limit."""
    if not (math.isfinite(time) and math.isfinite(limit)):
        return -MAX_LOG
    if time <= 0:
        return MAX_LOG
    return max(-MAX_LOG, min(MAX_LOG, math.log(limit / time)))
