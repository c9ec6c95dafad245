"""A gate of one variant as a CI test case."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from artifacts.gate_row import describe_lengths
from artifacts.run_record import RunReport, VariantReport
from eval_gates.cost import CostReport
from eval_gates.gate_report import GateReport
from eval_gates.speed.report import SpeedGateReport
from eval_gates.verdicts import blocks
from pipeline.core.errors import from_dict

Outcome = Literal["pass", "fail", "undecided", "error", "skipped"]
WHOLE_VARIANT = "verdict"
"""Name of the case that says what no gate alone says: not made, incoherent, not needed."""


@dataclass(frozen=True)
class Case:
    """One case of a CI report.

    `blocks`: the case prevents promotion. `facts`: figures as text at full precision.
    """

    variant: str
    name: str
    outcome: Outcome
    blocks: bool
    reason: str
    tier: str = "critical"
    suspicious: bool = False
    facts: Mapping[str, str] = field(default_factory=dict)

    @property
    def word(self) -> str:
        return "suspicious" if self.outcome == "pass" and self.suspicious else self.outcome


def cases_of_run(report: RunReport) -> list[Case]:
    """Return all cases in the report's order; an error of the whole run comes first."""
    ended = [] if report.error is None else [whole_run_case(report)]
    return [*ended, *(case for variant in report.variants for case in cases_of(variant))]


def whole_run_case(report: RunReport) -> Case:
    """Return the error that ended a run, with the command in place of a variant."""
    error = from_dict(report.error or {})
    kind = (report.error or {}).get("kind", "")
    return Case(command_of(report), "run", "error", True, str(error), facts={"kind": kind})


def command_of(report: RunReport) -> str:
    """Return the command, such as 'prepare gate'; recipe names contain no spaces."""
    return f"prepare {report.kind}"


def cases_of(variant: VariantReport) -> list[Case]:
    """Return a case for each gate.

    A case for the variant comes first if no gate explains its verdict.
    """
    cases = [gate_case(variant.recipe, gate) for gate in variant.gates]
    cases += [speed_case(variant.recipe, speed) for speed in variant.speed]
    cases += [cost_case(variant.recipe, cost) for cost in variant.cost]
    is_explained = any(case.blocks and case.outcome == variant.verdict for case in cases)
    if is_explained or (variant.verdict == "pass" and cases):
        return cases
    blocks = variant.verdict not in ("pass", "skipped")
    whole = Case(variant.recipe, WHOLE_VARIANT, variant.verdict, blocks, variant.reason)
    return [whole, *cases]


def gate_case(variant: str, gate: GateReport) -> Case:
    """Return the case of one suite."""
    return Case(
        variant,
        gate.suite,
        gate.verdict,
        blocks(gate.verdict, gate.tier),
        gate.reason,
        gate.tier,
        gate.suspicious,
        as_text(
            {
                "tier": gate.tier,
                "metric": gate.metric,
                "measured": gate.candidate,
                "baseline": gate.baseline,
                "difference": gate.difference,
                "recovery": gate.recovery,
                "value": gate.value,
                "bound": gate.bound,
                "upper_bound": gate.upper_bound,
                "threshold": gate.threshold,
                "margin": gate.margin,
                "n": gate.n,
                "planned": gate.planned,
                "look": gate.look,
                "p_value": gate.p_value,
                "alpha": gate.alpha,
                "method": gate.method,
                "flips": gate.flips,
                "lengths": describe_lengths(gate) or None,
            }
        ),
    )


def speed_case(variant: str, speed: SpeedGateReport) -> Case:
    """Return the case of one speed gate."""
    return Case(
        variant,
        speed.name,
        speed.verdict,
        blocks(speed.verdict, speed.tier),
        speed.reason,
        speed.tier,
        facts=as_text(
            {
                "tier": speed.tier,
                "metric": "limit over time" if speed.kind == "slo" else "ratio",
                "claim": speed.description,
                "measured": speed.estimate,
                "bound": speed.lower,
                "upper_bound": speed.upper,
                "threshold": speed.threshold,
                "unit": speed.unit,
                "n": speed.n,
                "p_value": speed.p_value,
                "alpha": speed.alpha,
                "note": speed.note,
            }
        ),
    )


def cost_case(variant: str, cost: CostReport) -> Case:
    """Return the case of the gate on tokens per solved task."""
    return Case(
        variant,
        cost.name,
        cost.verdict,
        blocks(cost.verdict, cost.tier),
        cost.reason,
        cost.tier,
        facts=as_text(
            {
                "tier": cost.tier,
                "metric": "tokens per solved task, ratio",
                "measured": cost.cost.ratio,
                "bound": cost.cost.upper,
                "lower_bound": cost.cost.lower,
                "tokens": cost.tokens.ratio,
                "threshold": cost.max_ratio,
                "n": cost.n,
                "alpha": cost.alpha,
                "method": cost.method,
            }
        ),
    )


def show_tier(tier: str) -> str:
    """Return the tier in brackets, or '' for the default tier."""
    return "" if tier == "critical" else f" ({tier})"


def as_text(facts: Mapping[str, str | float | None]) -> dict[str, str]:
    """Return figures as exact text, without None."""
    return {name: str(value) for name, value in facts.items() if value is not None}
