"""The table of gates: baseline, variant, difference with its bound, margin, recovery, verdict."""

from __future__ import annotations

from dataclasses import dataclass

from artifacts.report.run_evidence import RunEvidence
from eval_gates.records import GateReport, ThroughputReport
from pipeline.records import VariantReport


@dataclass(frozen=True)
class GateRow:
    """One gate of one variant, in words."""

    gate: str
    counted: str
    baseline: str
    variant: str
    difference: str
    bound: str
    margin: str
    recovery: str
    verdict: str
    reason: str


@dataclass(frozen=True)
class VariantPart:
    """One variant of the run.

    Attributes:
        recipe: that made it.
        verdict: `promoted`, or the verdict's own word.
        reason: in words; `cure` holds the further lines of an error.
        size: of its weights.
        rows: its gates.
        collected: what was measured of a variant that was not judged.
    """

    recipe: str
    verdict: str
    reason: str
    cure: str
    size: str
    rows: list[GateRow]
    collected: list[str]


def variant_parts(evidence: RunEvidence) -> list[VariantPart]:
    """Every variant of the run; those that it did not come to have no verdict."""
    report = evidence.report
    parts = [_part(variant, evidence) for variant in report.variants]
    judged = {variant.recipe for variant in report.variants}
    parts += [
        VariantPart(
            recipe=recipe,
            verdict="no verdict",
            reason=f"the run is {report.status}: it did not come to judge this variant",
            cure="",
            size="-",
            rows=[],
            collected=collected_words(evidence, recipe),
        )
        for recipe in evidence.recipes
        if recipe not in judged
    ]
    return parts


def collected_words(evidence: RunEvidence, recipe: str) -> list[str]:
    """Scores that were measured and not judged."""
    return [
        f"{suite}: {100 * record.result['score']:.1f} % of {record.result['n']} questions"
        for suite, record in evidence.collected(recipe)
        if isinstance(record.result.get("score"), float)
    ]


def _part(variant: VariantReport, evidence: RunEvidence) -> VariantPart:
    rows = [gate_row(gate) for gate in variant.gates]
    if variant.throughput is not None:
        rows.append(throughput_row(variant.throughput))
    reason, _, rest = variant.reason.partition("\n")
    return VariantPart(
        recipe=variant.recipe,
        verdict="promoted" if variant.promoted else variant.verdict,
        reason=reason,
        cure=rest,
        size=f"{variant.weights_bytes / 1e6:,.1f} MB" if variant.weights_bytes else "-",
        rows=rows,
        collected=[] if rows else collected_words(evidence, variant.recipe),
    )


def gate_row(gate: GateReport) -> GateRow:
    """Scores in per cent; difference and bound in points."""
    tier = "" if gate.tier == "critical" else f", {gate.tier}"
    bound = f"> {100 * gate.bound:+.2f}"
    if gate.value != "candidate - baseline":
        bound += f" ({gate.value})"
    return GateRow(
        gate=f"{gate.suite} {gate.metric}{tier}",
        counted=f"{gate.n:,}"
        if gate.decided_at in (None, gate.n)
        else f"{gate.n:,} (decided at {gate.decided_at:,})",
        baseline=f"{100 * gate.baseline:.2f} %",
        variant=f"{100 * gate.candidate:.2f} %",
        difference=f"{100 * gate.difference:+.2f}",
        bound=bound,
        margin=gate.margin,
        recovery="-" if gate.recovery is None else f"{100 * gate.recovery:.1f} %",
        verdict=gate.verdict,
        reason=gate.reason,
    )


def throughput_row(throughput: ThroughputReport) -> GateRow:
    """Output tokens a second; the ratio stands as the recovery."""
    tier = "" if throughput.tier == "critical" else f", {throughput.tier}"
    note = f"; {throughput.note}" if throughput.note else ""
    return GateRow(
        gate=f"throughput, output tokens/s{tier}",
        counted=f"{throughput.requests:,} requests",
        baseline=f"{throughput.baseline_output_tokens_per_s:,.1f}",
        variant=f"{throughput.output_tokens_per_s:,.1f}",
        difference=f"x {throughput.ratio:.3f}",
        bound="-",
        margin=f"at least x {throughput.minimum_ratio:g}",
        recovery=f"{100 * throughput.ratio:.1f} %",
        verdict=throughput.verdict,
        reason=throughput.reason + note,
    )
