"""The table of gates: baseline, variant, difference with its bound, margin, recovery, verdict."""

from __future__ import annotations

from dataclasses import dataclass

from artifacts.gate_row import GateRow, claim_rows, gate_row
from artifacts.number_format import format_megabytes, format_percent
from artifacts.report.attribution import attribution_table
from artifacts.report.figure import Table
from artifacts.report.run_evidence import RunEvidence
from artifacts.run_outcome import verdict_word
from artifacts.run_record import VariantReport


@dataclass(frozen=True)
class VariantSection:
    """One variant of the run."""

    recipe: str  # that made it
    verdict: str  # `promoted`, or the verdict's own word
    reason: str  # in words; `hint` holds the further lines of an error
    hint: str
    size: str  # of its weights
    rows: list[GateRow]  # its gates
    collected: list[str]  # what was measured of a variant that was not judged
    ablation: Table | None = None  # which of weights and KV cache costs what, where asked for


def variant_parts(evidence: RunEvidence) -> list[VariantSection]:
    """Return every variant of the run, also without a verdict."""
    report = evidence.report
    parts = [_part(variant, evidence) for variant in report.variants]
    judged = {variant.recipe for variant in report.variants}
    parts += [
        VariantSection(
            recipe=recipe,
            verdict="no verdict",
            reason=f"the run is {report.status}: it ended before this variant was judged",
            hint="",
            size="-",
            rows=[],
            collected=describe_collected(evidence, recipe),
        )
        for recipe in evidence.recipes
        if recipe not in judged
    ]
    return parts


def describe_collected(evidence: RunEvidence, recipe: str) -> list[str]:
    """Return scores that were measured and not judged."""
    return [
        f"{suite}: {format_percent(kept.result.score, 1)} of {kept.result.n} questions"
        for suite, kept in evidence.collect_answers(recipe)
        if kept.result.score is not None
    ]


def _part(variant: VariantReport, evidence: RunEvidence) -> VariantSection:
    rows = [*(gate_row(gate) for gate in variant.gates), *claim_rows(variant)]
    reason, _, rest = variant.reason.partition("\n")
    return VariantSection(
        recipe=variant.recipe,
        verdict=verdict_word(variant),
        reason=reason,
        hint=rest,
        size=format_megabytes(variant.weights_bytes),
        rows=rows,
        collected=[] if rows else describe_collected(evidence, variant.recipe),
        ablation=attribution_table(variant),
    )
