"""One gate of one variant, for terminal, report, card, CI and JUnit: each of them loops over these.

Figures are exact; only `show` rounds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from artifacts.number_format import format_percent, format_points
from artifacts.run_record import VariantReport
from eval_gates.cost import CostReport
from eval_gates.gate_report import GateReport, Tier
from eval_gates.speed.report import SpeedGateReport
from eval_gates.speed.server_runs import OF_THESE_STARTS
from eval_gates.verdicts import blocks
from pipeline.core.record import Record

SCORE: Literal["score"] = "score"
POINTS: Literal["points"] = "points"
RATIO: Literal["ratio"] = "ratio"


class GateResult(Record):
    """A gate's figures, its verdict, and why."""

    name: str = Field(description="suite, 'speed ratio.chat' or 'cost gsm8k'")
    metric: str = Field("", description="what is measured")
    tier: Tier = "critical"
    counted: str = Field("", description="questions, blocks or loads that decided")
    unit: str = Field(SCORE, description="of both sides: score (0 to 1), tokens/s, ...")
    baseline: float | None = None
    candidate: float | None = None
    scale: Literal["points", "ratio"] = Field(POINTS, description="of estimate, bound, threshold")
    estimate: float | None = Field(None, description="candidate against baseline")
    lower: float | None = None
    upper: float | None = None
    bound: float | None = Field(None, description="what is compared with the threshold")
    threshold: float = 0.0
    allowed: float | None = Field(None, description="estimate that is exactly on the margin")
    direction: Literal["above", "below"] = Field("above", description="where the bound must be")
    margin: str = Field("", description="what is asked for, in words")
    recovery: float | None = Field(None, description="only with a recovery margin")
    verdict: Literal["pass", "fail", "undecided", "error", "skipped"]
    words: str = Field(description="the verdict in plain words")
    reason: str = Field(description="the verdict with its statistics")
    suspicious: bool = False
    details: dict[str, str] = Field({}, description="further figures, exact")

    @property
    def blocks(self) -> bool:
        """Whether it keeps the variant from passing."""
        if self.verdict == "error" or self.verdict == "skipped":
            return self.verdict == "error"
        return blocks(self.verdict, self.tier)

    @property
    def title(self) -> str:
        """Name with metric, and a tier other than the default."""
        metric = f" {self.metric}" if self.unit == SCORE and self.metric else ""
        return f"{self.name}{metric}{self.unusual_tier}"

    @property
    def unusual_tier(self) -> str:
        return "" if self.tier == "critical" else f", {self.tier}"

    def show_sides(self, places: int = 2) -> tuple[str, str]:
        """Return baseline and candidate as text."""
        return show(self.baseline, self.unit, places), show(self.candidate, self.unit, places)

    def show_estimate(self, places: int = 2) -> str:
        return show(self.estimate, self.scale, places)

    def show_bound(self, places: int = 2) -> str:
        """Return the bound with its direction, or what is recovered; then the margin."""
        if self.recovery is not None:
            return f"{format_percent(self.recovery, 1)} of the baseline, {self.margin}"
        if self.bound is None:
            return self.margin
        sign = ">" if self.direction == "above" else "<"
        return f"{sign} {show(self.bound, self.scale, places)}, {self.margin}"

    def show_difference(self, places: int = 2) -> str:
        """Return the estimate with bound and margin."""
        return f"{self.show_estimate(places)} ({self.show_bound(places)})"


def show(value: float | None, unit: str, places: int) -> str:
    """Return a figure as text, '' for None."""
    if value is None:
        return ""
    if unit == SCORE:
        return format_percent(value, places)
    if unit == POINTS:
        return format_points(value, places)
    if unit == RATIO:
        return f"x {value:.{places + 1}f}"
    return f"{value:g} {unit}" if unit.startswith("of ") else f"{value:,.{places - 1}f} {unit}"


def results_of(variant: VariantReport) -> list[GateResult]:
    """Return the gates of a variant, in the policy's order: quality, speed, cost."""
    return [
        *map(quality_result, variant.gates),
        *map(speed_result, variant.speed),
        *map(cost_result, variant.cost),
    ]


def quality_result(gate: GateReport) -> GateResult:
    """Return the result of one suite."""
    is_recovery = gate.threshold >= 0
    allowed = (_recovered_share(gate) - 1) * gate.baseline if is_recovery else gate.threshold
    return GateResult(
        name=gate.suite,
        metric=gate.metric,
        tier=gate.tier,
        counted=f"{gate.n:,} of {gate.planned:,}" if gate.n < gate.planned else f"{gate.n:,}",
        baseline=gate.baseline,
        candidate=gate.candidate,
        estimate=gate.difference,
        lower=gate.interval[0],
        upper=gate.interval[1],
        bound=gate.bound,
        threshold=gate.threshold,
        allowed=allowed,
        margin=f"margin {gate.margin}" if is_recovery else f"margin {100 * gate.threshold:+g}",
        recovery=(gate.recovery or 0.0) if is_recovery else None,
        verdict=gate.verdict,
        words=_explain_quality(gate),
        reason=gate.reason,
        suspicious=gate.suspicious,
        details=as_text(
            {
                "margin": gate.margin,
                "value": gate.value,
                "recovery": gate.recovery,
                "upper_bound": gate.upper_bound,
                "n": gate.n,
                "planned": gate.planned,
                "look": gate.look,
                "p_value": gate.p_value,
                "alpha": gate.alpha,
                "method": gate.method,
                "flips": gate.flips,
                "lengths": describe_lengths(gate) or None,
                "shares": describe_shares(gate) or None,
            }
        ),
    )


def speed_result(speed: SpeedGateReport) -> GateResult:
    """Return the result of one speed gate."""
    is_ratio = speed.is_ratio
    within = float(speed.n - speed.beyond)
    return GateResult(
        name=speed.name,
        metric="output tokens/s" if is_ratio else "limit over time",
        tier=speed.tier,
        counted=f"{speed.n} {speed.unit}" + f", {OF_THESE_STARTS}" * (speed.starts == "once"),
        unit="tokens/s" if is_ratio else f"of {speed.n} within limits",
        baseline=speed.typical("baseline") if is_ratio else None,
        candidate=speed.typical("candidate") if is_ratio else within,
        scale=RATIO,
        estimate=speed.estimate,
        lower=speed.lower,
        upper=speed.upper,
        bound=speed.lower,
        threshold=speed.threshold,
        allowed=speed.threshold,
        margin=f"at least {speed.threshold:g}",
        verdict=speed.verdict,
        words=_explain_speed(speed),
        reason="; ".join(filter(None, (f"{speed.reason} ({speed.description})", speed.note))),
        details=as_text(
            {
                "claim": speed.description,
                "n": speed.n,
                "counted": speed.unit,
                "p_value": speed.p_value,
                "alpha": speed.alpha,
                "note": speed.note,
            }
        ),
    )


def cost_result(cost: CostReport) -> GateResult:
    """Return the result of the gate on tokens per solved task."""
    return GateResult(
        name=cost.name,
        metric="tokens per solved task",
        tier=cost.tier,
        counted=f"{cost.n:,}",
        unit="tokens/task",
        baseline=cost.baseline.tokens_per_solved_task,
        candidate=cost.candidate.tokens_per_solved_task,
        scale=RATIO,
        estimate=cost.cost.ratio,
        lower=cost.cost.lower,
        upper=cost.cost.upper,
        bound=cost.cost.upper,
        threshold=cost.max_ratio,
        allowed=cost.max_ratio,
        direction="below",
        margin=f"at most {cost.max_ratio:g}",
        verdict=cost.verdict,
        words=_explain_cost(cost),
        reason=cost.reason,
        details=as_text(
            {"tokens": cost.tokens.ratio, "n": cost.n, "alpha": cost.alpha, "method": cost.method}
        ),
    )


def describe_lengths(gate: GateReport) -> str:
    """Describe how long generated answers are, and how many have no end; '' for others."""
    before, after = gate.baseline_lengths, gate.candidate_lengths
    if before is None or after is None:
        return ""
    words = [f"{before.tokens:,.0f} to {after.tokens:,.0f} tokens an answer"]
    for label, one, other in (
        ("cut off", before.truncated, after.truncated),
        ("thoughts without an end", before.unclosed, after.unclosed),
        ("not readable", before.unread, after.unread),
    ):
        if one or other:
            words.append(f"{label}: {format_percent(one, 1)} to {format_percent(other, 1)}")
    return "; ".join(words)


def describe_shares(gate: GateReport) -> str:
    """Return how many conversations kept which share of tokens; '' for other suites."""
    counts = gate.nats.shares if gate.nats is not None else []
    listed = [f"{10 * n} to {10 * n + 10} %: {count}" for n, count in enumerate(counts) if count]
    return f"conversations by share kept: {', '.join(listed)}" if listed else ""


def as_text(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return figures as exact text, without None."""
    return {name: str(value) for name, value in facts.items() if value is not None}


def _explain_quality(gate: GateReport) -> str:
    sides = _describe_scores(gate)
    is_recovery = gate.threshold >= 0
    points = f"{-100 * gate.threshold:g}"
    allowed = gate.margin if is_recovery else f"{points} point{'s' * (points != '1')}"
    if gate.suspicious:
        return f"{sides}; suspicious: better than the baseline by more than {allowed}"
    if gate.verdict == "pass":
        return f"{sides}; {'it keeps' if is_recovery else 'the drop is below'} {allowed}"
    if gate.verdict == "fail":
        return f"{sides}; {'it does not keep' if is_recovery else 'the drop is above'} {allowed}"
    if gate.bound > gate.threshold:  # what was asked or answered shows nothing
        return f"{sides}; {gate.reason}"
    more = questions_missing(gate)
    if more is None:
        return f"{sides}; more questions would not show less than {allowed}"
    goal = f"that it keeps {allowed}" if is_recovery else f"a drop below {allowed}"
    return f"{sides}; about {more:,} more questions are needed to show {goal}"


def _describe_scores(gate: GateReport) -> str:
    right = [gate.baseline * gate.n, gate.candidate * gate.n]
    before, after = map(round, right)
    if gate.nats is not None:
        return (
            f"{format_percent(gate.candidate, 1)} of tokens kept, the baseline "
            f"{format_percent(gate.baseline, 1)}; {gate.nats.mean:.3f} +- {gate.nats.error:.3f} "
            "nats a token lost"
        )
    if any(abs(each - round(each)) > 1e-6 for each in right):
        return (
            f"{format_percent(gate.candidate, 1)}, the baseline {format_percent(gate.baseline, 1)}"
        )
    if before == after:
        return f"{after:,} of {gate.n:,} on both sides"
    return f"{after:,} of {gate.n:,}, the baseline {before:,}"


def questions_missing(gate: GateReport) -> int | None:
    """Return how many more questions would pass the gate if the difference stays; None: none.

    The bound's distance falls with the square root of their number; without a changed answer, with
    their number.
    """
    value = gate.difference
    if gate.threshold >= 0:
        value = gate.candidate - _recovered_share(gate) * gate.baseline
    gap, reach = value - gate.threshold, value - gate.bound
    if gap <= 0:
        return None
    more = gate.n * (reach / gap) ** (2 if gate.flips else 1) - gate.n
    if more > 1_000_000:  # no benchmark has as many
        return None
    digits: int = 10 ** max(0, math.floor(math.log10(max(more, 1))) - 1)
    return max(1, math.ceil(more / digits) * digits)


def _recovered_share(gate: GateReport) -> float:
    """Return 0.99 of the value 'candidate - 0.99 baseline'."""
    return float(gate.value.split()[2])


def _explain_speed(speed: SpeedGateReport) -> str:
    if speed.estimate is None or speed.lower is None:
        return speed.reason
    if not speed.is_ratio:
        within = f"{speed.n - speed.beyond} of {speed.n} {speed.unit} within the limits"
        return f"{within}; {speed.description}"
    found = f"{100 * speed.estimate:.0f} % of the baseline's output tokens/s"
    least = f"{100 * speed.threshold:g} %"
    if speed.verdict == "undecided":
        return f"{found}; {speed.n} {speed.unit} do not show that it is at least {least}"
    return f"{found}; {'more' if speed.verdict == 'pass' else 'less'} than the required {least}"


def _explain_cost(cost: CostReport) -> str:
    if cost.cost.ratio is None or cost.cost.upper is None:
        return cost.reason
    found = f"{100 * cost.cost.ratio:.0f} % of the baseline's tokens per solved task"
    return f"{found}; at most {100 * cost.max_ratio:g} % is allowed"
