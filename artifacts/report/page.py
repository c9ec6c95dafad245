"""Builds a report's page from template, style, scripts and figures: one HTML file.

The content security policy permits only inline content and two scripts by digest, so the page sends
no request. Jinja escapes all text; the figures' JSON escapes `<`, `>`, `&` and `'`.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from importlib import resources
from typing import Any

from artifacts import run_outcome
from artifacts.command_line import command_line
from artifacts.report import answers, provenance
from artifacts.report.figures import Figure, conversations_figure, gate_figure, tradeoff_figures
from artifacts.report.run_evidence import RunEvidence
from artifacts.run_record import VariantReport
from eval_gates.gate_result import GateResult, format_megabytes, format_percent
from pipeline import __version__
from pipeline.core.escape import make_visible


@dataclass(frozen=True)
class VariantSection:
    """One variant of the run."""

    recipe: str
    verdict: str  # `promoted`, or the verdict's own word
    reason: str  # `hint` has an error's further lines
    hint: str = ""
    size: str = ""
    gates: tuple[GateResult, ...] = ()
    figure: Figure | None = None
    collected: tuple[str, ...] = ()  # of a variant that was not judged


def run_page(evidence: RunEvidence) -> str:
    """Return the report of one run as HTML."""
    report = evidence.report
    sections = variant_sections(evidence)
    tradeoff = tradeoff_figures(report, evidence.baseline_bytes())
    examples = answers.changed_answers(evidence)
    conversations = {
        (each.recipe, each.suite): conversations_figure(n, each.recipe, each.suite, each.kept)
        for n, each in enumerate(examples)
        if each.kept
    }
    word = run_outcome.outcome(report)
    return _render(
        [*(s.figure for s in sections if s.figure), *tradeoff, *conversations.values()],
        title=f"{report.options.checkpoint or 'candidate'}: {word}",
        report=report,
        outcome=word,
        sentence=run_outcome.headline(report),
        serving=[
            *run_outcome.baseline_lines(report),
            *run_outcome.serving_lines(report.options),
            *run_outcome.drafting_lines(report),
            *run_outcome.attribution_lines(report),
        ],
        variants=sections,
        tradeoff=tradeoff,
        examples=examples,
        conversations=conversations,
        command=command_line(report.kind, report.command),
        facts=provenance.run_facts(evidence),
        tuples=provenance.tuple_table(evidence),
        policies=provenance.policies_as_json(evidence),
        stages=provenance.stage_table(report),
        missing=evidence.missing,
    )


def variant_sections(evidence: RunEvidence) -> list[VariantSection]:
    """Return every variant of the run, also without a verdict."""
    report = evidence.report
    sections = [_section(number, each, evidence) for number, each in enumerate(report.variants)]
    judged = {variant.recipe for variant in report.variants}
    reason = f"the run is {report.status}: it ended before this variant was judged"
    return sections + [
        VariantSection(recipe, "no verdict", reason, collected=_collected(evidence, recipe))
        for recipe in evidence.recipes
        if recipe not in judged
    ]


def _section(number: int, variant: VariantReport, evidence: RunEvidence) -> VariantSection:
    reason, _, rest = variant.reason.partition("\n")
    gates = tuple(variant.gates)
    return VariantSection(
        recipe=variant.recipe,
        verdict=run_outcome.verdict_word(variant),
        reason=reason,
        hint=rest,
        size=format_megabytes(variant.weights_bytes, nothing=""),
        gates=gates,
        figure=gate_figure(number, variant),
        collected=() if gates else _collected(evidence, variant.recipe),
    )


def _collected(evidence: RunEvidence, recipe: str) -> tuple[str, ...]:
    return tuple(
        f"{suite}: {format_percent(kept.result.score, 1)} of {kept.result.n} questions"
        for suite, kept in evidence.collect_answers(recipe)
        if kept.result.score is not None
    )


def plotly_script() -> str:
    """Return plotly.js of the package without importing its Python code."""
    script = resources.files("plotly") / "package_data" / "plotly.min.js"
    return script.read_text(encoding="utf-8")


def _render(figures: list[Figure], **context: Any) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("artifacts.report"),
        autoescape=True,
        finalize=_make_text_visible,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    loaded = environment.loader
    assert loaded is not None
    drawing = loaded.get_source(environment, "report.js")[0]
    plotting = plotly_script() if figures else ""
    return environment.get_template("page.html.j2").render(
        drawn={figure.name: figure.drawn for figure in figures},
        style=loaded.get_source(environment, "report.css")[0],
        scripts=[script for script in (plotting, drawing) if script],
        script_sources=" ".join(source_of(script) for script in (plotting, drawing) if script),
        version=__version__,
        **context,
    )


def _make_text_visible(value: Any) -> Any:
    return make_visible(value) if type(value) is str else value


def source_of(script: str) -> str:
    """Return an inline script's name in a content security policy."""
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
