"""A gate's row for the terminal, the report's page, the model card and the CI summary.

`--json`, the bundle and JUnit's properties have exact numbers (`eval_gates/gate_report.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from artifacts.number_format import format_percent, format_points
from eval_gates.speed.server_runs import OF_THESE_STARTS

if TYPE_CHECKING:
    from artifacts.run_record import VariantReport
    from eval_gates.cost import CostReport, CostSide
    from eval_gates.gate_report import GateReport, Tier, Verdict
    from eval_gates.speed.load_run import Side
    from eval_gates.speed.report import SpeedGateReport


@dataclass(frozen=True)
class GateRow:
    """One gate of one variant as text."""

    what: str  # suite and metric, or speed gate
    tier: Tier
    counted: str  # questions and after how many it was decided, or blocks, or rounds
    baseline: str  # score in points of 100, or output tokens/s
    candidate: str  # as the baseline
    unit: str  # of both
    difference: str  # in points, or the ratio
    bound: str  # one-sided, in points, or of the ratio; '' where there is none
    compared: str  # what the bound is of, where that is not the difference
    threshold: str  # what the bound must lie above, in points in full; '' for a speed gate
    margin: str  # the policy's
    is_recovery: bool  # whether the margin is one; else it is one in points
    recovery: str  # candidate over baseline; '' over zero
    verdict: Verdict
    reason: str
    lengths: str = ""  # of generated answers, baseline to candidate
    is_upper: bool = False  # whether the bound is from above, as that of a cost

    @property
    def sign(self) -> str:
        return "<" if self.is_upper else ">"

    @property
    def unusual_tier(self) -> str:
        return "" if self.tier == "critical" else f", {self.tier}"

    def describe_bound(self, lower: str) -> str:
        """Describe the bound of the difference; a lower one is preceded by `lower`."""
        if self.is_recovery:
            return f"{self.recovery or 'nothing'} recovered, margin {self.margin}"
        asked = f"margin {self.threshold}" if self.threshold else self.margin
        before = "< " if self.is_upper else lower
        return f"{before}{self.bound}, {asked}" if self.bound else asked


def gate_row(gate: GateReport, places: int = 2) -> GateRow:
    """Return one suite's row, with `places` decimal places."""
    return GateRow(
        what=f"{gate.suite} {gate.metric}",
        tier=gate.tier,
        counted=f"{gate.n:,} of {gate.planned:,}" if gate.n < gate.planned else f"{gate.n:,}",
        baseline=f"{100 * gate.baseline:.{places}f}",
        candidate=f"{100 * gate.candidate:.{places}f}",
        unit=" %",
        difference=format_points(gate.difference, places),
        bound=format_points(gate.bound, places),
        compared="" if gate.value == "candidate - baseline" else gate.value,
        threshold=f"{100 * gate.threshold:+g}",
        margin=gate.margin,
        is_recovery=gate.threshold >= 0,
        recovery=format_percent(gate.recovery, 1, nothing=""),
        verdict=gate.verdict,
        reason=gate.reason,
        lengths=describe_lengths(gate),
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


def speed_row(speed: SpeedGateReport, places: int = 2) -> GateRow:
    """Return a speed gate's row: its ratio with the lower bound and the 95 % interval."""
    is_ratio = speed.is_ratio

    def shown(value: float | None) -> str:
        return f"x {value:.{places + 1}f}" if value is not None else "-"

    both = ""
    if speed.interval is not None:
        low, high = (f"{each:.{places + 1}f}" for each in speed.interval)
        both = f" ({low} to {high})"
    return GateRow(
        what=speed.name,
        tier=speed.tier,
        counted=f"{speed.n} {speed.unit}" + f", {OF_THESE_STARTS}" * (speed.starts == "once"),
        baseline=_typical_rate(speed, "baseline", places) if is_ratio else "",
        candidate=_typical_rate(speed, "candidate", places)
        if is_ratio
        else f"{speed.n - speed.beyond} of {speed.n}",
        unit="" if is_ratio else " within limits",
        difference=f"{shown(speed.estimate)}{both}",
        bound=shown(speed.lower) if speed.lower is not None else "",
        compared="",
        threshold="",
        margin=f"at least {speed.threshold:g}",
        is_recovery=False,
        recovery=format_percent(speed.estimate, 1, nothing="") if is_ratio else "",
        verdict=speed.verdict,
        reason="; ".join(filter(None, (f"{speed.reason} ({speed.description})", speed.note))),
    )


def claim_rows(variant: VariantReport, places: int = 2) -> list[GateRow]:
    """Return the rows of a variant's gates on speed and on tokens per solved task."""
    return [
        *(speed_row(speed, places) for speed in variant.speed),
        *(cost_row(cost, places) for cost in variant.cost),
    ]


def cost_row(cost: CostReport, places: int = 2) -> GateRow:
    """Return the row of tokens per solved task: the ratio, with its upper bound."""

    def shown(value: float | None) -> str:
        return f"x {value:.{places + 1}f}" if value is not None else "-"

    def tokens(side: CostSide) -> str:
        found = side.tokens_per_solved_task
        return "-" if found is None else f"{found:,.{places - 1}f}"

    return GateRow(
        what=cost.name,
        tier=cost.tier,
        counted=f"{cost.n:,}",
        baseline=tokens(cost.baseline),
        candidate=tokens(cost.candidate),
        unit=" tokens/task",
        difference=shown(cost.cost.ratio),
        bound=shown(cost.cost.upper) if cost.cost.upper is not None else "",
        compared="",
        threshold="",
        margin=f"at most {cost.max_ratio:g}",
        is_recovery=False,
        recovery="",
        verdict=cost.verdict,
        reason=cost.reason,
        is_upper=True,
    )


def _typical_rate(speed: SpeedGateReport, side: Side, places: int) -> str:
    rate = speed.typical(side)
    return "-" if rate is None else f"{rate:,.{places - 1}f}"
