"""What a gate on speed writes down, and how its loads become a verdict."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any, Literal

from pydantic import Field

from eval_gates.gate_report import EProcessPoint, Tier, Verdict
from eval_gates.speed.invalid_reasons import InvalidReason, drafted_in, hit_rate
from eval_gates.speed.load_run import LoadRun, Side
from eval_gates.speed.result import SpeedTestResult
from eval_gates.speed.rule_from_config import Rule, rule_of
from eval_gates.speed.slo import SUSTAINED, SloRule, figures
from eval_gates.speed.steady_state import NoSteadyStateError, output_rate, window_of
from eval_gates.speed.throughput_ratio import ThroughputRatioRule
from pipeline.core.record import Record
from recipes.speed import ClaimKind

OF_A_BROKEN_SERVER = 0.1
"""A minimum at most this large says nothing of how fast a variant is."""
ONLY_BROKEN = "which shows that the server is not broken, and no more"

_SHOWN = ("ttft_ms_p50", "ttft_ms_p95", "tpot_ms_p50", "tpot_ms_p95")


class LoadSummary(Record):
    """One load, described; nothing is decided by these numbers."""

    side: Side
    block: int = Field(description="number of the block or round, from 0")
    order: int = Field(description="0: it went first")
    server_run: int = Field(description="of the server, from 0")
    output_tokens_per_s: float | None = Field(description="in the steady part")
    requests_per_s: float | None = Field(description="that were sent in the steady part")
    ttft_ms_p50: float | None = Field(description="time to first token")
    ttft_ms_p95: float | None
    tpot_ms_p50: float | None = Field(description="time per output token after the first")
    tpot_ms_p95: float | None
    failed: int = Field(description="requests that were not answered")
    hit_rate: float | None = Field(description="of the prefix cache; None where nobody counted")
    acceptance_rate: float | None = Field(
        None, description="share of the drafted tokens; None where none was drafted"
    )
    acceptance_length: float | None = Field(
        None, description="tokens that a step with drafts gave; None where none was drafted"
    )
    met_slo: bool | None = Field(
        description="whether the round kept the limits; None of a ratio, and of the warm-up"
    )
    counts: bool = Field(True, description="False: of the warm-up")


class SpeedGateReport(Record):
    """One claim on speed, and what its blocks or rounds say of it."""

    gate: str = Field(description="such as ratio.chat or slo.0")
    kind: ClaimKind
    workload: str = Field(description="its name")
    description: str = Field(description="in words")
    tier: Tier
    unit: str = Field(description="what n counts: blocks or rounds")
    n: int
    cap: int = Field(description="the most of them")
    decided_at: int | None = Field(description="after how many it was decided; None if not")
    estimate: float | None = Field(
        description="ratio of the typical block, or share of the rounds that kept the limits"
    )
    lower: float | None = Field(
        description="one-sided bound of it that holds at any time; None while there is none"
    )
    upper: float | None
    threshold: float = Field(description="what the lower bound must lie above to pass")
    restart_allowance: float = Field(
        0.0, description="of ln(ratio), for how two lives of one server differ; in the bounds"
    )
    alpha: float = Field(description="error rate of each bound, and of the verdict")
    p_value: float = Field(description="of 'the claim does not hold', valid at any time")
    invalid_reasons: list[InvalidReason] = Field(
        [], fail_fast=True, description="why nothing is concluded from what was measured"
    )
    continues: bool = Field(
        False, description="the next run of the same command continues this measurement"
    )
    voided: list[InvalidReason] = Field(
        [], fail_fast=True, description="faults of blocks or rounds that count for neither side"
    )
    lost: int = Field(0, description="of n, those that count for neither side for such a fault")
    server_mode: Literal["concurrent", "interleaved"] = Field(
        "concurrent", description="whether the servers of both sides were up at once, or in turn"
    )
    starts: Literal["one", "several"] = Field(
        "one",
        description="of the servers, that a pass is about: one start of each, as it was measured, "
        "or starts in general, of which each pair or round had its own",
    )
    total: float | None = Field(
        None,
        description="of a ratio: all output tokens over all time of the candidate, over the "
        "baseline's; below the threshold nothing passes",
    )
    left_over: float | None = Field(
        None,
        description="of limits: share of the requests that came in the rounds and were not "
        "answered in them; with 0.05 the rate is not sustained, and nothing passes",
    )
    requests_within: dict[str, float] = Field(
        {}, description="of limits: share of all requests within each latency limit"
    )
    loads: list[LoadSummary] = Field([], fail_fast=True, description="every load")
    e_process: list[EProcessPoint] = Field(
        [], fail_fast=True, description="the evidence after each block or round"
    )
    verdict: Verdict
    reason: str = Field(description="the verdict in words")
    note: str | None = Field(None, description="what the profile says beside its speeds")

    @property
    def name(self) -> str:
        """As reasons, cases and tables call it."""
        return f"speed {self.gate}"

    @property
    def is_ratio(self) -> bool:
        """Whether both sides' output tokens a second were compared."""
        return self.kind == "ratio"

    @property
    def shows_little(self) -> bool:
        """Whether a pass shows only that the server is not broken."""
        return self.is_ratio and self.threshold <= OF_A_BROKEN_SERVER

    def typical(self, side: Side, figure: str = "output_tokens_per_s") -> float | None:
        """Return the median of a `LoadSummary` field over the side's loads; None without any."""
        counted = (point for point in self.loads if point.side == side and point.counts)
        values = [getattr(point, figure) for point in counted]
        known = [value for value in values if value is not None]
        return median(known) if known else None


def judge_speed(
    gate: str,
    kind: ClaimKind,
    *,
    workload: str,
    tier: Tier,
    rule: Mapping[str, Any],
    loads: Sequence[LoadRun],
    at: str = "",
    note: str | None = None,
) -> SpeedGateReport:
    """Judge one claim.

    Args:
        gate: its name.
        kind: which rule decides.
        workload: name of the workload.
        tier: whether it may keep the variant out.
        rule: what decides, as plain data, at the policy's alpha.
        loads: in the order of measuring; may be none.
        at: when requests come, in words; '' where the workload says it.
        note: what the profile says beside its speeds.

    Raises:
        ValueError: the loads are no blocks or rounds of this claim, or of another workload.
    """
    for load in loads:
        if load.workload != workload:
            raise ValueError(f"{gate}: a load of '{load.workload}', not of '{workload}'")
    decides = rule_of(kind, rule)
    found = decides.finding(loads)
    reason = reason_of(decides, found) + how_to_remeasure(gate, found)
    verdict: Verdict = found.state if found.state in ("pass", "fail") else "undecided"
    trusted = not found.invalid_reasons
    totals: dict[str, Any] = {}
    if trusted and isinstance(decides, ThroughputRatioRule):
        totals = {"total": decides.total_ratio(loads)}
    elif trusted and isinstance(decides, SloRule):
        totals = {
            "left_over": decides.left_over(loads),
            "requests_within": decides.shares_within(loads),
        }
    return SpeedGateReport(
        **totals,
        starts="one" if decides.server_mode == "concurrent" else "several",
        gate=gate,
        kind=kind,
        workload=workload,
        description=claim_in_words(decides, workload, at),
        tier=tier,
        unit=decides.unit,
        n=found.n,
        cap=decides.cap,
        decided_at=found.decided_at,
        estimate=found.estimate,
        lower=found.lower,
        upper=found.upper,
        threshold=threshold_of(decides),
        restart_allowance=0.0 if isinstance(decides, SloRule) else decides.restart_allowance,
        alpha=decides.alpha,
        p_value=found.p_value,
        invalid_reasons=list(found.invalid_reasons),
        continues=found.state == "disturbed",
        voided=list(found.voided),
        lost=found.lost,
        server_mode=decides.server_mode,
        loads=points_of(decides, loads),
        e_process=list(found.e_process),
        verdict=verdict,
        reason="; ".join([reason, *_beside(totals)]),
        note=note,
    )


def _beside(totals: Mapping[str, Any]) -> Iterator[str]:
    """What stands beside the verdict, in words."""
    if (total := totals.get("total")) is not None:
        yield f"all tokens over all time: {total:.3f}"
    if within := totals.get("requests_within"):
        shares = ", ".join(f"{name} {100 * share:.1f} %" for name, share in within.items())
        yield f"requests within the limit: {shares}"
    if (left := totals.get("left_over")) is not None:
        is_sustained = left < SUSTAINED
        words = "is sustained" if is_sustained else "is not sustained"
        yield f"the rate {words}: {100 * max(0.0, left):.1f} % of the requests were left over"


def threshold_of(rule: Rule) -> float:
    """The smallest ratio, or the share of rounds, that is claimed."""
    return rule.slo_attainment if isinstance(rule, SloRule) else rule.min_ratio


def claim_in_words(rule: Rule, workload: str, at: str = "") -> str:
    """What a pass says, such as 'p95 of TTFT at most 800 ms in at least 50 % of rounds'."""
    of = f"{workload}{f' at {at}' if at else ''}"
    if isinstance(rule, ThroughputRatioRule):
        least = f"at least {rule.min_ratio:g} of the baseline's output tokens/s"
        of_one = " of one start of both servers" if rule.server_mode == "concurrent" else ""
        broken = f", {ONLY_BROKEN}" if rule.min_ratio <= OF_A_BROKEN_SERVER else ""
        return f"{of}: {least} in the typical {unit_of(rule)}{of_one}{broken}"
    if rule.compare == "baseline":
        limits = [f"{limit:g} of the baseline's {name}" for name, limit in rule.limits.items()]
    else:
        limits = [f"{name} {limit:g}" for name, limit in rule.limits.items()]
    kept = [f"at most {', '.join(limits)}"] if limits else []
    if rule.min_acceptance_length is not None:
        kept.append(
            f"at least {rule.min_acceptance_length:g} tokens a step by speculative decoding"
        )
    said = f"{' and '.join(kept)} in at least {100 * rule.slo_attainment:g} % of rounds"
    is_one_start = rule.server_mode == "concurrent"
    said += " of one start of the server" if is_one_start else ", each of its own start"
    return f"{of}: {said}"


def unit_of(rule: ThroughputRatioRule) -> str:
    """What the claim of a ratio is about."""
    return "block" if rule.server_mode == "concurrent" else "pair of lives"


def reason_of(rule: Rule, found: SpeedTestResult) -> str:
    """The verdict in words."""
    if found.state == "disturbed":
        return (
            f"measuring was disturbed: {faults_in_words(rule, found, found.invalid_reasons)}; the "
            "same "
            "command continues it"
        )
    if found.invalid_reasons:
        more = len(found.invalid_reasons) - 1
        rest = f", and {more} more" if more else ""
        return f"what was measured cannot be trusted: {found.invalid_reasons[0]}{rest}"
    if found.n == 0 or found.estimate is None:
        return "not measured"

    def shown(value: float | None) -> str:
        if isinstance(rule, SloRule):
            return f"{100 * (value or 0.0):.1f} %"
        return "any" if value is None else f"{value:.3f}"

    told = f"{shown(found.estimate)} "
    if isinstance(rule, ThroughputRatioRule):
        told += f"of the baseline's output tokens/s in the typical of {found.n} {rule.unit}"
        asked = f"{rule.min_ratio:g} is asked for"
    else:
        told += f"of {found.n} {rule.unit} kept the limits"
        asked = f"{100 * rule.slo_attainment:g} % is claimed"
    lost = f"; {faults_in_words(rule, found, found.voided)}" if found.lost else ""
    if found.withheld is not None:
        return f"{told}, but {found.withheld}{lost}"
    if found.state == "pass":
        return f"{told}; surely at least {shown(found.lower)}, {asked}{lost}"
    if found.state == "fail":
        return f"{told}; surely at most {shown(found.upper)}, {asked}{lost}"
    return f"{told}; between {shown(found.lower)} and {shown(found.upper)}, {asked}{lost}"


def how_to_remeasure(gate: str, found: SpeedTestResult) -> str:
    """What measures a gate again whose measurement has ended; '' for any other."""
    if found.state != "invalid":
        return ""
    return f"; change that, or measure again with `prepare model --remeasure {gate}`"


def faults_in_words(rule: Rule, found: SpeedTestResult, faults: Sequence[InvalidReason]) -> str:
    """How many units count for neither side, and the worst kind of fault with one example."""
    kinds = Counter(each.kind for each in faults)
    ((kind, _),) = kinds.most_common(1)
    one = next(each for each in reversed(faults) if each.kind == kind)
    if not found.lost:
        return str(one)
    return f"{found.lost} of {found.n} {rule.unit} count for neither side ({one})"


def points_of(rule: Rule, loads: Sequence[LoadRun]) -> list[LoadSummary]:
    """Every load, described."""
    blocks = list(dict.fromkeys(load.block for load in loads))
    of_units = rule.count(loads)
    counts = {
        block: bool(of_units[n // rule.loads_per_server_run]) for n, block in enumerate(blocks)
    }
    found: dict[int, bool] = {}
    if isinstance(rule, SloRule):
        found = {b: k for b, k in zip(blocks, rule.met_slo(loads), strict=True) if counts[b]}
    return [
        _point(
            load,
            found.get(load.block) if load.side == "candidate" else None,
            counts=counts[load.block],
        )
        for load in loads
    ]


def _point(load: LoadRun, kept: bool | None, counts: bool) -> LoadSummary:
    found, drafted = figures(load, _SHOWN), drafted_in(load)
    rate: float | None = None
    sent: float | None = None
    try:
        start, end = window_of(load)
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
