"""Report of a performance gate, computed from its loads."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Literal

from pydantic import Field

from eval_gates.gate_result import RATIO, GateResult, Side, Verdict
from eval_gates.speed.load_run import LoadRun
from eval_gates.speed.rules import Fault, SpeedFinding, SpeedRule, StartCount, StartCounts
from eval_gates.speed.schedule import Starts
from eval_gates.speed.steady_state import NoSteadyStateError, output_rate, percentiles
from prepare.record import Record
from recipes.config_model import Tier
from recipes.speed import SpeedGateKind

NAME = "speed "  # how the names of these gates begin
OF_THESE_STARTS = "of these starts"
"""What a verdict of servers that stay up is about."""
BROKEN_SERVER_RATIO = 0.1
"""A minimum up to this shows nothing about a variant's speed."""


class LoadSummary(Record):
    """Descriptive numbers of one load, which decide nothing."""

    side: Side
    block: int = Field(description="number of the block, from 0")
    order: int = Field(description="0: it went first")
    server_run: int = Field(description="how often the block was begun before")
    output_tokens_per_s: float | None = Field(description="in the steady state")
    ttft_ms_p50: float | None = Field(description="time to first token")
    ttft_ms_p95: float | None
    tpot_ms_p50: float | None = Field(description="time per output token after the first")
    tpot_ms_p95: float | None
    failed: int = Field(description="requests that were not answered")
    within: bool | None = Field(description="whether it met the limits; None for a ratio")
    counts: bool = Field(True, description="false for a disturbed load, or one with a fault")


class SpeedGateResult(GateResult):
    """Result of one performance gate."""

    kind: Literal["speed"] = "speed"
    gate_kind: SpeedGateKind
    description: str = Field(description="the requirement as a sentence")
    starts: Starts = Field(
        description="fresh: each load had its own server start, and the verdict is about starts in "
        "general; once: it is about the starts that were measured"
    )
    interval: tuple[float, float] | None = Field(
        description="two-sided, 95 %, of the estimate: candidate over baseline, or limit over time "
        "of the tightest limit; the geometric mean over the blocks"
    )
    with_disturbed: float | None = Field(
        None, description="the estimate with all disturbed blocks; None without any"
    )
    repeats: dict[str, int] = Field(
        {}, description="blocks that do not count, by cause: disturbed, or the side with a fault"
    )
    faults: list[Fault] = Field(
        [], fail_fast=True, description="why blocks do not count, or the measurement is invalid"
    )
    loads: list[LoadSummary] = Field([], fail_fast=True, description="every load")
    server_starts: dict[str, StartCount] = Field(
        {}, description="by side, over all commands since the first good start"
    )
    note: str | None = Field(None, description="the profile's note on its performance")
    concurrency: int | None = Field(
        None, description="requests in flight; None for a rate, or without a load"
    )

    @property
    def gate(self) -> str:
        """Name in the policy, such as ratio.chat or slo.0."""
        return self.name.removeprefix(NAME)

    @property
    def is_ratio(self) -> bool:
        return self.gate_kind == "ratio"

    @property
    def shows_little(self) -> bool:
        """Whether a pass shows only that the server works."""
        return self.is_ratio and self.threshold <= BROKEN_SERVER_RATIO

    def typical(self, side: Side, figure: str = "output_tokens_per_s") -> float | None:
        """Return a field's median over the side's loads."""
        return find_typical(self.loads, side, figure)


def find_typical(loads: Sequence[LoadSummary], side: Side, figure: str) -> float | None:
    """Return a field's median over the side's counted loads."""
    values = [getattr(load, figure) for load in loads if load.side == side and load.counts]
    known = [value for value in values if value is not None]
    return median(known) if known else None


def judge_speed(
    gate: str,
    rule: SpeedRule,
    *,
    workload: str,
    tier: Tier,
    loads: Sequence[LoadRun],
    at: str = "",
    note: str | None = None,
    starts: StartCounts | None = None,
    traffic: str = "",
) -> SpeedGateResult:
    """Decide one gate; ValueError if the loads do not fit the gate or workload.

    `loads` are in measuring order. `at` describes other arrivals than the workload's. `starts` has
    those of servers by side. `traffic` is the workload's load in words.
    """
    for load in loads:
        if load.workload != workload:
            raise ValueError(f"{gate}: a load has the workload '{load.workload}', not '{workload}'")
    units = rule.units(loads)
    for unit in units:
        if sorted(load.side for load in unit) != rule.sides or len({x.block for x in unit}) != 1:
            raise ValueError(f"{gate}: block {unit[0].block} does not have one load of each side")
    finding = rule.evaluate(loads, starts)
    blocks = rule.sort(loads, starts)
    counted = {unit[0].block for unit in blocks.quiet}
    is_ratio = rule.kind == "ratio"
    shown = [
        _summarize_load(
            load, None if is_ratio else rule.value([load]) >= 0, counts=load.block in counted
        )
        for load in loads
    ]
    verdict: Verdict = "undecided"
    if finding.state == "pass" or finding.state == "fail":
        verdict = finding.state
    description = describe_gate(rule, workload, at, traffic)
    within = sum(bool(load.within) and load.counts for load in shown)
    is_measured = bool(loads) or blocks.ended is not None
    parts = list(_describe(rule, finding, gate)) if is_measured else ["not measured"]
    if starts and is_measured:
        failed = [
            f"{side} {count.failed} of {count.tried}"
            + f" and {count.early} before" * bool(count.early)
            for side, count in starts.items()
        ]
        is_ours = all(count.is_ours for count in starts.values())
        what = "failed server starts" if is_ours else "commands in which an endpoint failed"
        parts.append(f"{what}: {', '.join(failed)}")
    if not is_ratio and finding.quiet:
        beyond = finding.quiet - within
        parts.append(f"{beyond} of {finding.quiet} {rule.unit} beyond a limit")
    if blocks.repeats:
        kinds = Counter(fault.kind for fault in blocks.faults)
        one = next(f for f in reversed(blocks.faults) if f.kind == kinds.most_common(1)[0][0])
        counts = ", ".join(f"{cause} {number}" for cause, number in blocks.repeats.items())
        parts.append(f"measured again: {counts} ({one})")
        if finding.state == "undecided" and blocks.repeats["disturbed"]:
            parts.append(f"free the machine and add `--remeasure {gate}`")
    if finding.with_disturbed is not None:
        parts.append(f"{finding.with_disturbed:.3f} with the disturbed {rule.unit}")
    if killed := sum(unit[0].server_run for unit in units):
        parts.append(f"blocks begun again after a kill: {killed}")
    in_flight = {load.concurrency for load in loads}
    about = (
        f"{finding.quiet} {rule.unit}",
        OF_THESE_STARTS if rule.starts == "once" else "",
        traffic,
    )
    return SpeedGateResult(
        name=f"{NAME}{gate}",
        metric="output tokens/s" if is_ratio else "limit over time",
        tier=tier,
        n=finding.quiet,
        counted=", ".join(filter(None, about)) if units else "not measured",
        unit="tokens/s" if is_ratio else f"of {finding.quiet} within limits",
        baseline=find_typical(shown, "baseline", "output_tokens_per_s") if is_ratio else None,
        candidate=find_typical(shown, "candidate", "output_tokens_per_s")
        if is_ratio
        else float(within),
        scale=RATIO,
        estimate=finding.estimate,
        lower=finding.lower,
        upper=finding.upper,
        bound=finding.lower,
        threshold=rule.min_ratio,
        allowed=rule.min_ratio,
        margin=f"at least {rule.min_ratio:g}",
        alpha=rule.alpha,
        p_value=finding.p_value,
        verdict=verdict,
        reason="; ".join(filter(None, (*parts, description, note))),
        gate_kind="ratio" if is_ratio else "slo",
        description=description,
        starts=rule.starts,
        interval=finding.interval,
        with_disturbed=finding.with_disturbed,
        repeats=dict(blocks.repeats),
        faults=blocks.faults,
        loads=shown,
        server_starts=dict(starts or {}),
        note=note,
        concurrency=in_flight.pop() if len(in_flight) == 1 else None,
    )


def describe_gate(rule: SpeedRule, workload: str, at: str = "", load: str = "") -> str:
    """Return 'chat (64 concurrent requests): at most ttft_ms_p95 800 in the typical start'."""
    traffic = f"{workload}{f' at {at}' if at else ''}{f' ({load})' if load else ''}"
    starts = "in the typical start" if rule.starts == "fresh" else OF_THESE_STARTS
    if rule.kind == "slo":
        limits = ", ".join(f"{name} {limit:g}" for name, limit in rule.limits.items())
        return f"{traffic}: at most {limits} {starts}"
    little = rule.min_ratio <= BROKEN_SERVER_RATIO
    broken = ", which shows only that the server is not broken" * little
    least = f"at least {rule.min_ratio:g} of the baseline's output tokens/s"
    return f"{traffic}: {least} {starts}{broken}"


def _describe(rule: SpeedRule, finding: SpeedFinding, gate: str) -> Iterator[str]:
    if finding.state == "invalid":
        yield f"the measurement shows nothing: {finding.why}"
        yield f"fix the cause and measure again with `prepare model --remeasure {gate}`"
    elif finding.estimate is None or finding.interval is None:
        yield finding.why
    else:
        what = "of the baseline's output tokens/s"
        if rule.kind == "slo":
            what = "is the tightest limit over its time"
        low, high = finding.interval
        yield f"{finding.estimate:.3f} {what}, 95 % interval {low:.3f} to {high:.3f}"
        bound = "upper" if finding.state == "fail" else "lower"
        value = finding.upper if finding.state == "fail" else finding.lower
        starts = f", {OF_THESE_STARTS}" * (rule.starts == "once")
        yield f"{bound} bound {value:.3f} from {finding.quiet} {rule.unit}{starts}"
        if finding.why:
            yield finding.why


def _summarize_load(load: LoadRun, within: bool | None, *, counts: bool) -> LoadSummary:
    figures = percentiles(load, ("ttft_ms_p50", "ttft_ms_p95", "tpot_ms_p50", "tpot_ms_p95"))
    try:
        rate = output_rate(load)
    except NoSteadyStateError:
        rate = None
    return LoadSummary(
        **load.model_dump(include={"side", "block", "order", "server_run"}),
        output_tokens_per_s=rate,
        failed=int(figures.pop("errors")),
        within=within,
        counts=counts,
        **{name: value if math.isfinite(value) else None for name, value in figures.items()},
    )
