"""Report of a performance gate, computed from its loads."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any, Literal

from pydantic import Field

from eval_gates.gate_report import Tier, Verdict
from eval_gates.speed.gate_rule import ClaimRule
from eval_gates.speed.invalid_reasons import InvalidReason, count_drafts, hit_rate
from eval_gates.speed.load_run import LoadRun, Side
from eval_gates.speed.result import EProcessPoint, SpeedTestResult
from eval_gates.speed.server_runs import ServerMode
from eval_gates.speed.slo import SUSTAINED, SloRule, percentiles
from eval_gates.speed.steady_state import NoSteadyStateError, output_rate, steady_window
from eval_gates.speed.throughput_ratio import ThroughputRatioRule
from pipeline.core.record import Record
from recipes.speed import ClaimKind

BROKEN_SERVER_RATIO = 0.1
"""A minimum up to this shows nothing about a variant's speed."""
BROKEN_SERVER_NOTE = "which shows only that the server is not broken"

STARTS: Mapping[ServerMode, Literal["one", "two", "several"]] = {
    "concurrent": "one",
    "swapped": "two",
    "interleaved": "several",
}
_SHOWN = ("ttft_ms_p50", "ttft_ms_p95", "tpot_ms_p50", "tpot_ms_p95")


class LoadSummary(Record):
    """Descriptive numbers of one load; no verdict depends on them."""

    side: Side
    block: int = Field(description="number of the block or round, from 0")
    order: int = Field(description="0: it went first, or has the first GPUs")
    server_run: int = Field(description="number of the server run, from 0")
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
    met_slo: bool | None = Field(
        description="whether the round met the limits; None for a ratio and in the warm-up"
    )
    counts: bool = Field(True, description="false in the warm-up")


class SpeedGateReport(Record):
    """Result of one performance gate."""

    gate: str = Field(description="such as ratio.chat or slo.0")
    kind: ClaimKind
    workload: str = Field(description="its name")
    description: str = Field(description="the requirement as a sentence")
    tier: Tier
    unit: str = Field(description="unit of n: blocks or rounds")
    n: int
    cap: int = Field(description="largest n")
    decided_at: int | None = Field(description="n at the decision; None if undecided")
    estimate: float | None = Field(
        description="ratio of the typical block, or share of the rounds that met the limits"
    )
    lower: float | None = Field(
        description="anytime-valid one-sided bound of it; None if there is none"
    )
    upper: float | None
    threshold: float = Field(description="value that the lower bound must exceed to pass")
    restart_allowance: float = Field(
        0.0, description="of ln(ratio), for differences between server runs; part of the bounds"
    )
    alpha: float = Field(description="error rate of each bound and of the verdict")
    p_value: float = Field(description="of 'the requirement is not met', anytime-valid")
    invalid_reasons: list[InvalidReason] = Field(
        [], fail_fast=True, description="why the measurement is invalid"
    )
    continues: bool = Field(
        False, description="the next run of the same command continues this measurement"
    )
    voided: list[InvalidReason] = Field(
        [],
        fail_fast=True,
        description="reasons of the blocks or rounds that count for neither side",
    )
    lost: int = Field(0, description="blocks or rounds in n that count for neither side")
    server_mode: ServerMode = Field(
        "concurrent",
        description="whether the servers of both sides ran concurrently, in turn, or on GPUs of "
        "their own that were swapped",
    )
    starts: Literal["one", "two", "several"] = Field(
        "one",
        description="server starts that a pass is about: the measured one or two of each side, or "
        "starts in general, of which each pair or round had its own",
    )
    total: float | None = Field(
        None,
        description="for a ratio: the candidate's output tokens per second over all blocks, over "
        "the baseline's; nothing passes below the threshold",
    )
    left_over: float | None = Field(
        None,
        description="for limits: share of the requests that arrived in the rounds and were not "
        "answered in them; from 0.05 on the rate is not sustained, and nothing passes",
    )
    requests_within: dict[str, float] = Field(
        {}, description="for limits: share of all requests within each latency limit"
    )
    loads: list[LoadSummary] = Field([], fail_fast=True, description="every load")
    e_process: list[EProcessPoint] = Field(
        [], fail_fast=True, description="evidence after each block or round"
    )
    verdict: Verdict
    reason: str = Field(description="reason of the verdict")
    note: str | None = Field(None, description="the profile's note on its performance")

    @property
    def name(self) -> str:
        return f"speed {self.gate}"

    @property
    def is_ratio(self) -> bool:
        return self.kind == "ratio"

    @property
    def shows_little(self) -> bool:
        """Whether a pass shows only that the server works."""
        return self.is_ratio and self.threshold <= BROKEN_SERVER_RATIO

    def typical(self, side: Side, figure: str = "output_tokens_per_s") -> float | None:
        """Return the median of a `LoadSummary` field over the side's loads."""
        counted = (point for point in self.loads if point.side == side and point.counts)
        values = [getattr(point, figure) for point in counted]
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
) -> SpeedGateReport:
    """Decide one gate; ValueError if the loads do not fit the gate or workload.

    Args:
        loads: in the order of measuring; may be empty.
        at: description of the arrivals; '' if the workload has it.
        note: the profile's note on its performance.
    """
    for load in loads:
        if load.workload != workload:
            raise ValueError(f"{gate}: a load has the workload '{load.workload}', not '{workload}'")
    found = rule.evaluate(loads)
    reason = describe_result(rule, found) + remeasure_hint(gate, found)
    verdict: Verdict = found.state if found.state in ("pass", "fail") else "undecided"
    trusted = not found.invalid_reasons
    totals: dict[str, Any] = {}
    if trusted and isinstance(rule, ThroughputRatioRule):
        totals = {"total": rule.total_ratio(loads)}
    elif trusted and isinstance(rule, SloRule):
        totals = {
            "left_over": rule.left_over(loads),
            "requests_within": rule.shares_within(loads),
        }
    return SpeedGateReport(
        **totals,
        starts=STARTS[rule.server_mode],
        gate=gate,
        kind=rule.kind,
        workload=workload,
        description=describe_gate(rule, workload, at),
        tier=tier,
        unit=rule.unit,
        n=found.n,
        cap=rule.cap,
        decided_at=found.decided_at,
        estimate=found.estimate,
        lower=found.lower,
        upper=found.upper,
        threshold=gate_threshold(rule),
        restart_allowance=0.0 if isinstance(rule, SloRule) else rule.restart_allowance,
        alpha=rule.alpha,
        p_value=found.p_value,
        invalid_reasons=list(found.invalid_reasons),
        continues=found.state == "disturbed",
        voided=list(found.voided),
        lost=found.lost,
        server_mode=rule.server_mode,
        loads=summarize_loads(rule, loads),
        e_process=list(found.e_process),
        verdict=verdict,
        reason="; ".join([reason, *_describe_totals(totals)]),
        note=note,
    )


def _describe_totals(totals: Mapping[str, Any]) -> Iterator[str]:
    if (total := totals.get("total")) is not None:
        yield f"all tokens over all time: {total:.3f}"
    if within := totals.get("requests_within"):
        shares = ", ".join(f"{name} {100 * share:.1f} %" for name, share in within.items())
        yield f"requests within the limit: {shares}"
    if (left := totals.get("left_over")) is not None:
        is_sustained = left < SUSTAINED
        words = "is sustained" if is_sustained else "is not sustained"
        yield f"the rate {words}: {100 * max(0.0, left):.1f} % of the requests were not answered"


def gate_threshold(rule: ClaimRule) -> float:
    """Return the smallest ratio, or the share of rounds, that passes."""
    return rule.slo_attainment if isinstance(rule, SloRule) else rule.min_ratio


def describe_gate(rule: ClaimRule, workload: str, at: str = "") -> str:
    """Describe the gate: 'p95 of TTFT at most 800 ms in at least 50 % of rounds'."""
    traffic = f"{workload}{f' at {at}' if at else ''}"
    if isinstance(rule, ThroughputRatioRule):
        least = f"at least {rule.min_ratio:g} of the baseline's output tokens/s"
        starts = "" if rule.server_mode == "interleaved" else f" of {STARTS[rule.server_mode]} "
        starts += {"one": "start", "two": "starts"}.get(STARTS[rule.server_mode], "")
        starts += " of both servers" * bool(starts)
        broken = f", {BROKEN_SERVER_NOTE}" if rule.min_ratio <= BROKEN_SERVER_RATIO else ""
        return f"{traffic}: {least} in the typical {unit_name(rule)}{starts}{broken}"
    if rule.compare == "baseline":
        limits = [f"{limit:g} of the baseline's {name}" for name, limit in rule.limits.items()]
    else:
        limits = [f"{name} {limit:g}" for name, limit in rule.limits.items()]
    met = [f"at most {', '.join(limits)}"] if limits else []
    if rule.min_acceptance_length is not None:
        met.append(f"at least {rule.min_acceptance_length:g} tokens a step by speculative decoding")
    text = f"{' and '.join(met)} in at least {100 * rule.slo_attainment:g} % of rounds"
    is_one_start = rule.server_mode == "concurrent"
    text += " of one server start" if is_one_start else ", each of another server start"
    return f"{traffic}: {text}"


def unit_name(rule: ThroughputRatioRule) -> str:
    """Return the name of one unit of a ratio."""
    return "block" if rule.unit == "blocks" else rule.unit.replace("pairs", "pair")


def describe_result(rule: ClaimRule, found: SpeedTestResult) -> str:
    """Describe the verdict."""
    if found.state == "disturbed":
        return (
            "the measurement was disturbed: "
            f"{describe_faults(rule, found, found.invalid_reasons)}; the same command continues it"
        )
    if found.invalid_reasons:
        more = len(found.invalid_reasons) - 1
        rest = f", and {more} more" if more else ""
        return f"the measurement is invalid: {found.invalid_reasons[0]}{rest}"
    if found.n == 0 or found.estimate is None:
        return "not measured"

    def shown(value: float | None) -> str:
        if isinstance(rule, SloRule):
            return f"{100 * (value or 0.0):.1f} %"
        return "any" if value is None else f"{value:.3f}"

    measured = f"{shown(found.estimate)} "
    if isinstance(rule, ThroughputRatioRule):
        measured += f"of the baseline's output tokens/s in the typical of {found.n} {rule.unit}"
        required = f"at least {rule.min_ratio:g} is required"
    else:
        measured += f"of {found.n} {rule.unit} met the limits"
        required = f"at least {100 * rule.slo_attainment:g} % is required"
    lost = f"; {describe_faults(rule, found, found.voided)}" if found.lost else ""
    if found.withheld is not None:
        return f"{measured}, but {found.withheld}{lost}"
    if found.state == "pass":
        return f"{measured}; lower bound {shown(found.lower)}, {required}{lost}"
    if found.state == "fail":
        return f"{measured}; upper bound {shown(found.upper)}, {required}{lost}"
    return f"{measured}; between {shown(found.lower)} and {shown(found.upper)}, {required}{lost}"


def remeasure_hint(gate: str, found: SpeedTestResult) -> str:
    """Return how to repeat a measurement without a verdict; '' for any other."""
    if found.state != "invalid":
        return ""
    return f"; fix the cause and measure again with `prepare model --remeasure {gate}`"


def describe_faults(
    rule: ClaimRule, found: SpeedTestResult, faults: Sequence[InvalidReason]
) -> str:
    """Describe how many units are lost, with the most frequent fault."""
    kinds = Counter(fault.kind for fault in faults)
    ((kind, _),) = kinds.most_common(1)
    one = next(fault for fault in reversed(faults) if fault.kind == kind)
    if not found.lost:
        return str(one)
    return f"{found.lost} of {found.n} {rule.unit} count for neither side ({one})"


def summarize_loads(rule: ClaimRule, loads: Sequence[LoadRun]) -> list[LoadSummary]:
    """Describe every load."""
    blocks = list(dict.fromkeys(load.block for load in loads))
    counted = rule.counted_blocks(loads)
    found: dict[int, bool] = {}
    if isinstance(rule, SloRule):
        found = {b: k for b, k in zip(blocks, rule.met_slo(loads), strict=True) if b in counted}
    return [
        _summarize_load(
            load,
            found.get(load.block) if load.side == "candidate" else None,
            counts=load.block in counted,
        )
        for load in loads
    ]


def _summarize_load(load: LoadRun, kept: bool | None, counts: bool) -> LoadSummary:
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
        met_slo=kept,
        counts=counts,
        **{name: value if math.isfinite(value) else None for name, value in found.items()},
    )
