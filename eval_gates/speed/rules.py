"""Rules of performance gates: Student's t over blocks of server starts.

A block has one load of each side, with the same prompts, in drawn order. Its value is the logarithm
of candidate over baseline, or of limit over percentile (the tightest limit).

Disturbances from outside the servers are detected without speed and side. Their blocks are
repeated, at most as often as there are blocks, and must not change the verdict. A lag of the client
that disturbs no block counts against the verdict: a ratio passes though the baseline alone would
have been faster by it. Failed requests are repeated only once: an unreliable server must not be
measured until it works.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from eval_gates.speed import steady_state
from eval_gates.speed.load_run import (
    CHARACTERS_PER_REQUEST,
    MAX_CHARACTERS,
    MAX_REQUESTS,
    LoadRun,
    NumericRecord,
)
from eval_gates.speed.schedule import MIN_ANSWERS, Starts
from eval_gates.speed.steady_state import NoSteadyStateError
from prepare.record import Record
from recipes.accelerator import Accelerator
from recipes.speed import SloGate, SpeedGate
from recipes.workload import AnyWorkload, Arrivals, RandomWorkload, change_arrivals

if TYPE_CHECKING:
    from recipes.schema import ServingProfile

State = Literal["pass", "fail", "open", "undecided", "invalid"]
"""open: not measured completely; invalid: the measurement shows nothing of these servers."""
FaultKind = Literal[
    "throttled",
    "other_process",
    "client_lag",
    "failed_requests",
    "hit_rate",
    "too_short",
    "too_few",
    "unlike",
]
DISTURBANCES: frozenset[FaultKind] = frozenset({"throttled", "other_process", "client_lag"})
"""`unlike` is the measurement's own fault, and all other kinds are a side's."""
MAX_OWN = 2  # blocks with a fault of the same side that end the gate
MAX_LATE = 0.1  # of a load's time, or of the limited time, by which the client may be late
MARGIN_LATE = 1 / 2
MARGIN_APART = 1 / 5  # shares of a ratio's margin that a lag may hide
MIN_LATE = 0.01  # in ln(tokens/s): a smaller lag, or difference of lags, is no disturbance
MAX_LOG = 50.0  # largest ln(limit / time); a missing time has the negative
SUSTAINED = 0.05  # unanswered share of all requests from which on a rate is not sustained
MAX_BEYOND = 1 / 6  # largest share of starts beyond a limit with which a gate passes
HIT_RATE_TOLERANCE = 0.05
MIN_WAVES = 7  # that end in the steady state; a load has at least eight, and one may be late


class Fault(Record):
    """Why a load does not count."""

    kind: FaultKind
    side: str
    block: int = Field(description="number of the block, from 0")
    words: str

    def __str__(self) -> str:
        return f"{self.side}, number {self.block}: {self.words}"


class StartCount(Record):
    """Starts of one side's server, over all commands; or commands that used its endpoint."""

    is_ours: bool = Field(True, description="false of an endpoint")
    tried: int = Field(0, ge=0)
    failed: int = Field(0, ge=0, description="that did not serve, or ended under load")
    early: int = Field(
        0, ge=0, description="that failed before the first good one; they end no gate"
    )
    why: str = Field("", description="of the last failure")

    @property
    def is_over(self) -> bool:
        """Whether its failures end the gate."""
        return self.failed >= MAX_OWN

    @property
    def what(self) -> str:
        return "a start of its server" if self.is_ours else "its endpoint"

    @property
    def words(self) -> str:
        """Note on failures; '' if there were none."""
        if not self.failed and not self.early:
            return ""
        which, uses = ("its server", "starts") if self.is_ours else ("its endpoint", "commands")
        early = f"in {self.early} {uses} before the first good one" if self.early else ""
        later = f"in {self.failed} of {self.tried} {uses}" if self.failed else ""
        return f"{which} failed {' and '.join(filter(None, (early, later)))}: {self.why}"


StartCounts = Mapping[str, StartCount]
"""By side."""


@dataclass(frozen=True)
class SpeedFinding:
    """Verdict with bounds; None with fewer than two quiet blocks."""

    state: State
    quiet: int  # blocks that count
    estimate: float | None = None  # exp of the mean value
    lower: float | None = None  # at the rule's level
    upper: float | None = None
    interval: tuple[float, float] | None = None  # two-sided, 95 %
    p_value: float = 1.0
    with_disturbed: float | None = None  # the estimate over all complete blocks
    why: str = ""  # what keeps the gate from its bounds' verdict


@dataclass
class Blocks:
    """Complete blocks, up to one that ends the measurement."""

    quiet: list[Sequence[LoadRun]] = field(default_factory=list)
    disturbed: list[Sequence[LoadRun]] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    repeats: Counter[str] = field(default_factory=Counter)  # of blocks, by cause or side
    total: int = 0
    ended: tuple[State, str] | None = None


class SpeedRule(NumericRecord):
    """Settings of a measurement and its end."""

    kind: Literal["ratio", "slo", "screening"] = Field(
        description="ratio: output tokens/s, candidate over baseline; slo: limits on the "
        "candidate's latencies; screening: output tokens/s of a candidate, which decides nothing"
    )
    alpha: float = Field(gt=0, lt=0.5, description="error rate of a pass and of a fail")
    blocks: int = Field(ge=1, le=100, description="quiet blocks that decide")
    min_ratio: float = Field(1.0, gt=0, description="of a ratio: smallest acceptable one")
    limits: dict[str, float] = Field({}, description="by name, such as ttft_ms_p95 or errors")
    hit_rate: float | None = Field(None, description="declared by the workload")
    must_count_hits: bool = Field(
        False, description="even if no hits are declared: prompts of a file may share a prefix"
    )
    starts: Starts = Field(
        "fresh", description="fresh: a start of the server for each load; once: servers stay up"
    )

    @property
    def compares(self) -> bool:
        """Whether a block has a load of the baseline."""
        return self.kind == "ratio"

    @property
    def max_lag_gain(self) -> float:
        """Largest lag of a side of a ratio, in ln(tokens/s)."""
        return self._late_by(MARGIN_LATE)

    @property
    def max_lag_difference(self) -> float:
        """Largest difference of the sides' lags: a hundredth where a ratio may be 5 % less."""
        return self._late_by(MARGIN_APART)

    def _late_by(self, share: float) -> float:
        if not self.compares:
            return MAX_LATE
        return min(MAX_LATE, max(MIN_LATE, share * abs(math.log(self.min_ratio))))

    @property
    def unit(self) -> str:
        return "blocks" if self.compares else "loads"

    @property
    def sides(self) -> list[str]:
        """Sides of a block."""
        return ["baseline", "candidate"] if self.compares else ["candidate"]

    @property
    def max_requests(self) -> int:
        """Limit of a load's requests: all must fit into the evidence."""
        loads = 2 * self.blocks * len(self.sides)
        return min(MAX_REQUESTS, MAX_CHARACTERS // CHARACTERS_PER_REQUEST // loads)

    def units(self, loads: Sequence[LoadRun]) -> list[Sequence[LoadRun]]:
        """Return the loads by complete block."""
        size = len(self.sides)
        return [loads[end - size : end] for end in range(size, len(loads) + 1, size)]

    def needs_more(self, loads: Sequence[LoadRun], starts: StartCounts | None = None) -> bool:
        """Return whether blocks are missing; `starts` may have ended the measurement."""
        return self.is_open(self.sort(loads, starts))

    def is_open(self, blocks: Blocks) -> bool:
        """Return whether blocks are missing; there are as many repeats as blocks."""
        enough = len(blocks.quiet) >= self.blocks or blocks.total >= 2 * self.blocks
        return blocks.ended is None and not enough

    def value(self, unit: Sequence[LoadRun]) -> float:
        """Return the block's value, below 0 if a limit is missed."""
        if self.kind == "slo":
            figures = steady_state.percentiles(unit[0], self.limits)
            margins = [_log_margin(figures[n], self.limits[n]) for n in figures if n != "errors"]
            return min(margins, default=MAX_LOG)
        rates = {load.side: math.log(steady_state.output_rate(load)) for load in unit}
        return rates["candidate"] - rates.get("baseline", 0.0)

    def deviation(self, loads: Sequence[LoadRun]) -> float | None:
        """Return the standard deviation of the quiet blocks' values; None of fewer than two."""
        values = [self.value(unit) for unit in self.sort(loads).quiet]
        return stdev(values) if len(values) > 1 else None

    def sort(self, loads: Sequence[LoadRun], starts: StartCounts | None = None) -> Blocks:
        """Sort the blocks by their faults, and see whether failed starts end the gate."""
        blocks = self._sort(loads)
        for side in self.sides:
            count = (starts or {}).get(side)
            if count is not None and count.is_over:
                state: State = "fail" if side == "candidate" else "invalid"
                blocks.ended = (state, f"{side}: {count.words}")
        return blocks

    def _sort(self, loads: Sequence[LoadRun]) -> Blocks:
        blocks = Blocks()
        own = Counter[str]()
        for unit in self.units(loads):
            blocks.total += 1
            faults = list(self._faults(unit))
            if unlike := [fault for fault in faults if fault.kind == "unlike"]:
                blocks.faults = unlike
                blocks.ended = ("invalid", str(unlike[0]))
                return blocks
            outside = [fault for fault in faults if fault.kind in DISTURBANCES]
            if outside:
                blocks.faults += outside
                blocks.repeats["disturbed"] += 1
                if len(outside) == len(faults):
                    blocks.disturbed.append(unit)
                continue
            if not faults:
                blocks.quiet.append(unit)
                errors = [error for load in unit for error in load.requests.error]
                failed = len(errors) - errors.count(None)
                allowed = self.limits.get("errors", 0.0)
                if failed > allowed:
                    why = f"{failed} requests of a load failed, {allowed:g} may"
                    blocks.ended = ("fail", why)
                    return blocks
            blocks.faults += faults
            for side in dict.fromkeys(fault.side for fault in faults):
                own[side] += 1
                blocks.repeats[side] += 1
                if own[side] == MAX_OWN:
                    last = next(fault for fault in faults if fault.side == side)
                    fails = side == "candidate" and last.kind == "failed_requests"
                    why = f"for the second time: {last}"
                    blocks.ended = ("fail" if fails else "invalid", why)
                    return blocks
        return blocks

    def evaluate(self, loads: Sequence[LoadRun], starts: StartCounts | None = None) -> SpeedFinding:
        """Decide from the loads in measuring order, and from the servers' failed starts."""
        blocks = self.sort(loads, starts)
        values = [self.value(unit) for unit in blocks.quiet]
        if blocks.ended is not None:
            return SpeedFinding(blocks.ended[0], len(values), why=blocks.ended[1])
        ending: State = "open" if self.is_open(blocks) else "undecided"
        why = ""
        if len(values) < self.blocks:
            why = f"only {len(values)} of {self.blocks} {self.unit} were quiet"
        if self.kind == "screening":
            rate = math.exp(fmean(values)) if values else None
            return SpeedFinding(ending if why else "pass", len(values), rate, why=why)
        if len(values) < 2:
            return SpeedFinding(ending, len(values), why=why)
        finding = self._decide(values, list(map(self._lags, blocks.quiet)))
        others = self._decide([*values, *map(self.value, blocks.disturbed)])
        state = ending if why else finding.state
        if state == "pass" and (why := self._withholds(blocks.quiet)):
            state = "undecided"
        elif state != ending and others.state != state:
            state = "undecided"
            why = f"with the disturbed {self.unit} the verdict would be another"
        return replace(
            finding,
            state=state,
            p_value=finding.p_value if state == "pass" else max(finding.p_value, self.alpha),
            with_disturbed=others.estimate if blocks.disturbed else None,
            why=why,
        )

    def _decide(
        self, values: Sequence[float], lags: Sequence[Mapping[str, float]] = ()
    ) -> SpeedFinding:
        """Decide from the blocks' values; `lags` are theirs, by side."""
        from eval_gates.statistics.paired_t import compare_mean

        limit = math.log(self.min_ratio)
        comparison = compare_mean(values, limit, self.alpha)
        punctual_baseline = list(values)
        punctual_candidate = list(values)
        for place, lag in enumerate(lags):
            punctual_baseline[place] -= lag["baseline"]
            punctual_candidate[place] += lag["candidate"]
        worst = compare_mean(punctual_baseline, limit, self.alpha)
        best = compare_mean(punctual_candidate, limit, self.alpha)
        # A shift can make the values more alike, which must not help either.
        lower = min(comparison.lower, worst.lower)
        upper = max(comparison.upper, best.upper)
        state: State = "undecided"
        if lower > limit:
            state = "pass"
        elif upper < limit:
            state = "fail"
        low, high = comparison.interval
        return SpeedFinding(
            state,
            len(values),
            estimate=math.exp(comparison.mean),
            lower=math.exp(lower),
            upper=math.exp(min(upper, 2 * MAX_LOG)),
            interval=(math.exp(low), math.exp(min(high, 2 * MAX_LOG))),
            p_value=max(comparison.p_value, worst.p_value),
        )

    def _lags(self, unit: Sequence[LoadRun]) -> Mapping[str, float]:
        """Return by how much a punctual client could have improved each side, in ln."""
        gains = {"baseline": 0.0, "candidate": 0.0}
        for load in unit:
            if self.compares:
                gains[load.side] = steady_state.lag_gain(load)
            else:  # of a quiet load it is at most a tenth
                gains[load.side] = -math.log1p(-self._late_share(load))
        return gains

    def _withholds(self, quiet: Sequence[Sequence[LoadRun]]) -> str:
        """Return why the gate must not pass despite its bound."""
        if self.kind != "slo":
            return ""
        flows = [steady_state.count_flow(load) for (load,) in quiet]
        arrived = sum(arrivals for arrivals, _ in flows)
        left = 1 - sum(answers for _, answers in flows) / arrived if arrived else 1.0
        if left >= SUSTAINED:
            return f"the rate is not sustained: {100 * left:.1f} % of the requests were left over"
        beyond = sum(self.value(unit) < 0 for unit in quiet)
        if beyond > MAX_BEYOND * len(quiet):
            return f"{beyond} of {len(quiet)} {self.unit} were beyond a limit"
        return ""

    def _faults(self, unit: Sequence[LoadRun]) -> Iterator[Fault]:
        for load in unit:
            for kind, words in (
                *((disturbance.kind, disturbance.what) for disturbance in load.interference),
                *self._engine_faults(load),
                *self._steady_faults(load),
            ):
                yield Fault(kind=kind, side=load.side, block=load.block, words=words)
        yield from self._unequal_lags(unit)
        if len({(load.seed, load.prompts_sha256) for load in unit}) > 1:
            words = "the two sides had different prompts"
            yield Fault(kind="unlike", side="candidate", block=unit[0].block, words=words)

    def _unequal_lags(self, unit: Sequence[LoadRun]) -> Iterator[Fault]:
        """Yield a fault if the sides' lags differ: it would hide that difference of speed."""
        if not self.compares:
            return
        try:
            gains = {load.side: steady_state.lag_gain(load) for load in unit}
        except NoSteadyStateError:
            return  # which is another fault
        later = max(unit, key=lambda load: gains[load.side])
        others = [gain for side, gain in gains.items() if side != later.side]
        apart = gains[later.side] - min(others)
        if self.max_lag_difference < apart < math.inf:
            words = f"the client was later by {100 * apart:.1f} % than for the other side"
            yield Fault(kind="client_lag", side=later.side, block=later.block, words=words)

    def _engine_faults(self, load: LoadRun) -> Iterator[tuple[FaultKind, str]]:
        errors = [error for error in load.requests.error if error is not None]
        if errors and self.kind != "slo":  # limits count them
            words = f"{len(errors)} of {len(load.requests)} requests failed: {errors[0]}"
            yield "failed_requests", words
        if self.hit_rate is None:
            return
        measured = hit_rate(load)
        declared = f"the workload declares {self.hit_rate:.2f}"
        if measured is None:
            # Random prompts differ in each load.
            if self.hit_rate > 0 or self.must_count_hits:
                yield "hit_rate", f"the engine does not count prefix cache hits; {declared}"
        elif abs(measured - self.hit_rate) > HIT_RATE_TOLERANCE:
            yield "hit_rate", f"the prefix cache's hit rate was {measured:.2f}; {declared}"

    def _steady_faults(self, load: LoadRun) -> Iterator[tuple[FaultKind, str]]:
        try:
            steady_state.output_rate(load)
            if self._is_late(load):
                yield "client_lag", _describe_lag(load)
            if load.arrivals == "concurrency":
                waves = steady_state.count_waves(load)
                if waves < MIN_WAVES:
                    words = f"{waves:.1f} waves of requests are steady; {MIN_WAVES} are needed"
                    yield "too_short", words
        except NoSteadyStateError as error:
            # If nothing was answered, failed requests are the reason.
            if any(failure is None for failure in load.requests.error):
                yield "too_short", str(error)
            return
        if self.kind != "slo" or steady_state.is_over_saturated(load):
            return  # the queue of an over-saturated server is its answer
        answer = steady_state.median_answer_s(load)
        lasted = load.measured_s
        if lasted is not None and answer is not None and lasted < MIN_ANSWERS * answer:
            yield (
                "too_short",
                f"{lasted:g} s are shorter than ten median answers of {answer:.3g} s: increase the "
                "workload's 'seconds'",
            )
            return
        highest = max_percentile(self.limits) or 0
        start, end = steady_state.steady_window(load)
        counted = sum(start <= sent < end for sent in load.requests.start_s)
        if counted < (needed := min_requests(highest)):
            yield "too_few", f"{counted} requests count, but P{highest} needs {needed}"

    def _is_late(self, load: LoadRun) -> bool:
        if self.kind != "slo":
            # It hides that share of a difference, and its cause may slow one server alone.
            return steady_state.lag_gain(load) > self.max_lag_gain
        return self._late_share(load) > MAX_LATE

    def _late_share(self, load: LoadRun) -> float:
        """Return the client's lag as a share of the shortest limit, or of an answer."""
        # The client's lag hardly changes a mean over tokens.
        times = [v for n, v in self.limits.items() if n.startswith(("ttft_ms", "latency_ms"))]
        judged = min(times) / 1e3 if times else steady_state.median_answer_s(load)
        if judged is None:
            return 0.0
        return math.inf if load.client_lag_s is None else load.client_lag_s / judged


def build_rule(
    speed_gate: SpeedGate,
    alpha: float,
    accelerator: Accelerator | None,
    workload: AnyWorkload | None = None,
    profile: ServingProfile | None = None,
) -> SpeedRule:
    """Return a gate's rule; ValueError if it does not apply to that accelerator.

    `alpha` is the error rate of a pass and of a fail. `profile` is None for running endpoints.
    """
    gate = speed_gate.gate
    hits = workload.declared_hit_rate if workload is not None else None
    return SpeedRule(
        kind=speed_gate.kind,
        alpha=alpha,
        blocks=gate.starts if isinstance(gate, SloGate) else gate.blocks,
        min_ratio=1.0 if isinstance(gate, SloGate) else gate.minimum_on(accelerator),
        limits=dict(gate.limits.items()) if isinstance(gate, SloGate) else {},
        hit_rate=hits,
        # A file's prompts may share a prefix.
        must_count_hits=hits == 0 and not isinstance(workload, RandomWorkload),
        starts=profile.starts if profile is not None else "once",
    )


def apply_gate_rate(speed_gate: SpeedGate, workload: AnyWorkload) -> AnyWorkload:
    """Return the workload at the gate's rate."""
    gate = speed_gate.gate
    if isinstance(gate, SloGate) and gate.rate is not None:
        return change_arrivals(workload, Arrivals(rate=gate.rate))
    return workload


def max_percentile(limits: Iterable[str]) -> int | None:
    """Return the limits' highest percentile, if any."""
    return max((int(n.rpartition("_p")[2]) for n in limits if n != "errors"), default=None)


def min_requests(percentile: int) -> int:
    """Return a percentile's requests: one beyond it, so 20 for P95."""
    return math.ceil(100 / (100 - percentile))


def hit_rate(load: LoadRun) -> float | None:
    """Return the share of prompt tokens from the prefix cache."""
    before = load.before
    after = load.after
    if before is None or after is None:
        return None
    names = ("prefix_cache_queries", "prefix_cache_hits")
    counts = [getattr(counters, name) for name in names for counters in (before, after)]
    if None in counts:
        return None
    queries = counts[1] - counts[0]
    hits = counts[3] - counts[2]
    return hits / queries if queries > 0 and 0 <= hits <= queries else None


def _describe_lag(load: LoadRun) -> str:
    if load.client_lag_s is None:
        return "the client's lag is unknown"
    words = f"the client was late by {1e3 * load.client_lag_s:.0f} ms a step"
    if load.runnable is None or load.cpus is None:
        return words
    return f"{words} ({load.runnable:.1f} threads were ready to run on {load.cpus} CPUs)"


def _log_margin(time: float, limit: float) -> float:
    """Return ln(limit / time), within MAX_LOG."""
    if not (math.isfinite(time) and math.isfinite(limit)):
        return -MAX_LOG
    if time <= 0:
        return MAX_LOG
    return max(-MAX_LOG, min(MAX_LOG, math.log(limit / time)))
