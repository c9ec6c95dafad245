"""Report of a performance gate, computed from its loads."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any, Literal, get_args

from pydantic import Field

from eval_gates.gate_result import RATIO, GateResult, Tier, Verdict
from eval_gates.speed.gate_rule import ClaimRule
from eval_gates.speed.invalid_reasons import InvalidReason, count_drafts, hit_rate
from eval_gates.speed.load_run import LoadRun, Side
from eval_gates.speed.rules import SUSTAINED, LimitRule, SpeedFinding
from eval_gates.speed.server_runs import OF_THESE_STARTS, Starts
from eval_gates.speed.steady_state import (
    NoSteadyStateError,
    output_rate,
    percentiles,
    steady_window,
)
from pipeline.core.record import Record
from recipes.speed import ClaimKind

NAME = "speed "  # how the names of these gates begin
BROKEN_SERVER_RATIO = 0.1
"""A minimum up to this shows nothing about a variant's speed."""
BROKEN_SERVER_NOTE = "which shows only that the server is not broken"
_SHOWN = ("ttft_ms_p50", "ttft_ms_p95", "tpot_ms_p50", "tpot_ms_p95")


class LoadSummary(Record):
    """Descriptive numbers of one load; no verdict depends on them."""

    side: Side
    block: int = Field(description="number of the block, from 0")
    order: int = Field(description="0: it went first")
    server_run: int = Field(description="number of the server start, from 0")
    output_tokens_per_s: float | None = Field(description="in the steady state")
    requests_per_s: float | None = Field(description="sent in the steady state")
    ttft_ms_p50: float | None = Field(description="time to first token")
    ttft_ms_p95: float | None
    tpot_ms_p50: float | None = Field(description="time per output token after the first")
    tpot_ms_p95: float | None
    failed: int = Field(description="requests that were not answered")
    hit_rate: float | None = Field(description="of the prefix cache; None without counters")
    acceptance_rate: float | None = Field(
        None, description="share of the draft tokens; None without drafts"
    )
    acceptance_length: float | None = Field(
        None, description="tokens per step with drafts; None without drafts"
    )
    within: bool | None = Field(description="whether it met the limits; None for a ratio")
    counts: bool = Field(True, description="false for a disturbed load, or one with a fault")


class SpeedGateResult(GateResult):
    """Result of one performance gate."""

    kind: Literal["speed"] = "speed"
    claim: ClaimKind
    workload: str = Field(description="its name")
    description: str = Field(description="the requirement as a sentence")
    starts: Starts = Field(
        description="fresh: each load had its own server start, and the verdict is about starts in "
        "general; once: it is about the starts that were measured"
    )
    units: str = Field(description="unit of n: blocks of both sides, or loads")
    cap: int = Field(description="number that decides")
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
    faults: list[InvalidReason] = Field(
        [], fail_fast=True, description="why blocks do not count, or the measurement is invalid"
    )
    beyond: int = Field(0, description="for limits: loads in n that missed one")
    left_over: float | None = Field(
        None,
        description="for limits: share of the requests that arrived and were not answered in "
        "time; from 0.05 on the rate is not sustained, and nothing passes",
    )
    requests_within: dict[str, float] = Field(
        {}, description="for limits: share of all requests within each latency limit"
    )
    loads: list[LoadSummary] = Field([], fail_fast=True, description="every load")
    note: str | None = Field(None, description="the profile's note on its performance")

    @property
    def gate(self) -> str:
        """Its name in the policy, such as ratio.chat or slo.0."""
        return self.name.removeprefix(NAME)

    @property
    def is_ratio(self) -> bool:
        return self.claim == "ratio"

    @property
    def shows_little(self) -> bool:
        """Whether a pass shows only that the server works."""
        return self.is_ratio and self.threshold <= BROKEN_SERVER_RATIO

    def typical(self, side: Side, figure: str = "output_tokens_per_s") -> float | None:
        """Return the median of a `LoadSummary` field over the side's loads."""
        return find_typical(self.loads, side, figure)


def find_typical(loads: Sequence[LoadSummary], side: Side, figure: str) -> float | None:
    """Return the median of a field over the side's loads that count."""
    values = [getattr(load, figure) for load in loads if load.side == side and load.counts]
    known = [value for value in values if value is not None]
    return median(known) if known else None


def decide_speed_gate(
    gate: str,
    rule: ClaimRule,
    *,
    workload: str,
    tier: Tier,
    loads: Sequence[LoadRun],
    at: str = "",
    note: str | None = None,
) -> SpeedGateResult:
    """Decide one gate; ValueError if the loads do not fit the gate or workload.

    Args:
        loads: in the order of measuring; may be empty.
        at: description of the arrivals; '' if the workload has it.
        note: the profile's note on its performance.
    """
    for load in loads:
        if load.workload != workload:
            raise ValueError(f"{gate}: a load has the workload '{load.workload}', not '{workload}'")
    for unit in rule.units(loads):
        wanted = ["baseline", "candidate"] if rule.compares else ["candidate"]
        if sorted(load.side for load in unit) != wanted or len({x.block for x in unit}) != 1:
            raise ValueError(f"{gate}: block {unit[0].block} does not have one load of each side")
    found = rule.evaluate(loads)
    quiet = [load for unit in rule.quiet_blocks(loads) for load in unit]
    totals: dict[str, Any] = {}
    if quiet and isinstance(rule, LimitRule):
        totals = {"left_over": rule.left_over(quiet), "requests_within": rule.shares_within(quiet)}
    verdict: Verdict = "undecided"
    if found.state == "pass" or found.state == "fail":
        verdict = found.state
    shown, is_ratio = summarize_loads(rule, loads, quiet), rule.kind == "ratio"
    description = describe_gate(rule, workload, at)
    killed = _describe_killed(rule, loads)
    reason = "; ".join([*describe_result(rule, found, gate), *killed, *_describe_totals(totals)])
    sides = [find_typical(shown, side, "output_tokens_per_s") for side in get_args(Side)]
    if not is_ratio:
        sides = [None, float(found.quiet - found.beyond)]
    return SpeedGateResult(
        **totals,
        name=f"{NAME}{gate}",
        metric="output tokens/s" if is_ratio else "limit over time",
        tier=tier,
        n=found.quiet,
        counted=f"{found.quiet} {rule.unit}" + f", {OF_THESE_STARTS}" * (rule.starts == "once"),
        unit="tokens/s" if is_ratio else f"of {found.quiet} within limits",
        baseline=sides[0],
        candidate=sides[1],
        scale=RATIO,
        estimate=found.estimate,
        lower=found.lower,
        upper=found.upper,
        bound=found.lower,
        threshold=rule.threshold,
        allowed=rule.threshold,
        margin=f"at least {rule.threshold:g}",
        alpha=rule.alpha,
        p_value=found.p_value,
        verdict=verdict,
        words=_explain(rule, found, verdict, description) or reason,
        reason="; ".join(filter(None, (f"{reason} ({description})", note))),
        claim=rule.kind,
        workload=workload,
        description=description,
        starts=rule.starts,
        units=rule.unit,
        cap=rule.cap,
        interval=found.interval,
        with_disturbed=found.with_disturbed,
        repeats=dict(found.repeats),
        faults=list(found.faults),
        beyond=found.beyond,
        loads=shown,
        note=note,
    )


def _explain(rule: ClaimRule, found: SpeedFinding, verdict: Verdict, description: str) -> str:
    """Return the verdict in plain words; '' without a bound."""
    if found.estimate is None or found.lower is None:
        return ""
    if rule.kind != "ratio":
        within = f"{found.quiet - found.beyond} of {found.quiet} {rule.unit} within the limits"
        return f"{within}; {description}"
    ratio = f"{100 * found.estimate:.0f} % of the baseline's output tokens/s"
    least = f"{100 * rule.threshold:g} %"
    if verdict == "undecided":
        return f"{ratio}; {found.quiet} {rule.unit} do not show that it is at least {least}"
    return f"{ratio}; {'more' if verdict == 'pass' else 'less'} than the required {least}"


def _describe_killed(rule: ClaimRule, loads: Sequence[LoadRun]) -> Iterator[str]:
    """Yield how many blocks were killed, and drawn again."""
    if rule.starts == "fresh":
        killed = sum(unit[0].server_run for unit in rule.units(loads))
        if killed:
            yield f"{killed} {'block was' if killed == 1 else 'blocks were'} begun again"


def _describe_totals(totals: dict[str, Any]) -> Iterator[str]:
    if within := totals.get("requests_within"):
        shares = ", ".join(f"{name} {100 * share:.1f} %" for name, share in within.items())
        yield f"requests within the limit: {shares}"
    if (left := totals.get("left_over")) is not None:
        is_sustained = left < SUSTAINED
        words = "is sustained" if is_sustained else "is not sustained"
        yield f"the rate {words}: {100 * max(0.0, left):.1f} % of the requests were not answered"


def describe_gate(rule: ClaimRule, workload: str, at: str = "") -> str:
    """Describe the gate: 'at most ttft_ms_p95 800 in the typical start'."""
    traffic = f"{workload}{f' at {at}' if at else ''}"
    starts = "in the typical start" if rule.starts == "fresh" else OF_THESE_STARTS
    if isinstance(rule, LimitRule):
        limits = ", ".join(f"{name} {limit:g}" for name, limit in rule.limits.items())
        return f"{traffic}: at most {limits} {starts}"
    broken = f", {BROKEN_SERVER_NOTE}" if rule.min_ratio <= BROKEN_SERVER_RATIO else ""
    least = f"at least {rule.min_ratio:g} of the baseline's output tokens/s"
    return f"{traffic}: {least} {starts}{broken}"


def describe_result(rule: ClaimRule, found: SpeedFinding, gate: str) -> Iterator[str]:
    """Describe the verdict, in parts."""
    if found.state == "invalid":
        yield f"the measurement shows nothing: {found.why}"
        yield f"fix the cause and measure again with `prepare model --remeasure {gate}`"
        return
    if found.estimate is None or found.interval is None:
        yield found.why or "not measured"
    else:
        low, high = found.interval
        if isinstance(rule, LimitRule):
            what = "is the tightest limit over its time"
            yield f"{found.estimate:.3f} {what}, 95 % interval {low:.3f} to {high:.3f}"
        else:
            what = "of the baseline's output tokens/s"
            yield f"{found.estimate:.3f} {what}, 95 % interval {low:.3f} to {high:.3f}"
        starts = f", {OF_THESE_STARTS}" * (rule.starts == "once")
        yield f"{found.quiet} {rule.unit}{starts}"
        bound = "upper" if found.state == "fail" else "lower"
        value = found.upper if bound == "upper" else found.lower
        yield f"{bound} bound {value:.3f}, at least {rule.threshold:g} is required"
        if found.why:
            yield found.why
    if isinstance(rule, LimitRule) and found.quiet:
        yield f"{found.beyond} of {found.quiet} {rule.unit} beyond a limit"
    if found.repeats:
        kinds = Counter(fault.kind for fault in found.faults)
        one = next(f for f in reversed(found.faults) if f.kind == kinds.most_common(1)[0][0])
        counts = ", ".join(f"{cause} {number}" for cause, number in found.repeats.items())
        yield f"measured again: {counts} ({one})"
    if found.with_disturbed is not None:
        yield f"{found.with_disturbed:.3f} with the disturbed {rule.unit}"


def summarize_loads(
    rule: ClaimRule, loads: Sequence[LoadRun], quiet: Sequence[LoadRun]
) -> list[LoadSummary]:
    """Describe every load."""
    counted = {load.block for load in quiet}
    return [
        _summarize_load(
            load,
            rule.value([load]) >= 0 if isinstance(rule, LimitRule) else None,
            counts=load.block in counted,
        )
        for load in loads
    ]


def _summarize_load(load: LoadRun, within: bool | None, counts: bool) -> LoadSummary:
    found, drafted = percentiles(load, _SHOWN), count_drafts(load)
    rate: float | None = None
    sent: float | None = None
    try:
        start, end = steady_window(load)
        sent = sum(start <= each < end for each in load.requests.start_s) / (end - start)
        rate = output_rate(load)
    except NoSteadyStateError:
        pass
    return LoadSummary(
        side=load.side,
        block=load.block,
        order=load.order,
        server_run=load.server_run,
        output_tokens_per_s=rate,
        requests_per_s=sent,
        failed=int(found.pop("errors")),
        hit_rate=hit_rate(load),
        acceptance_rate=drafted.rate if drafted else None,
        acceptance_length=drafted.length if drafted else None,
        within=within,
        counts=counts,
        **{name: value if math.isfinite(value) else None for name, value in found.items()},
    )
