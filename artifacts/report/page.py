"""Builds the report: one HTML file.

Its content security policy permits only inline content and two scripts by digest.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass
from importlib import resources
from typing import Any

from artifacts import run_outcome
from artifacts.command_line import command_line, without_password
from artifacts.report import answers
from artifacts.report.figures import (
    Figure,
    Table,
    gate_figure,
    tradeoff_figures,
)
from artifacts.report.run_evidence import RunEvidence
from artifacts.run_record import RunReport, VariantReport
from eval_gates.gate_result import GateResult, format_percent
from pipeline import __version__
from pipeline.core.escape import make_visible
from pipeline.stages.adopt import ADOPT
from pipeline.stages.quantize import QUANTIZE
from pipeline.stages.screen import SCREEN
from recipes.catalog import BASELINE

Facts = dict[str, str]


def run_facts(evidence: RunEvidence) -> Facts:
    """Return the provenance of the run."""
    report = evidence.report
    facts = {
        "run": report.run,
        "status": report.status,
        "started": report.started,
        "seconds": f"{report.seconds:,.0f}",
        "record's schema version": str(report.schema_version),
    }
    if report.checkpoint is not None:
        facts |= {
            "checkpoint": report.checkpoint.ref,
            "checkpoint's digest": report.checkpoint.digest,
        }
    facts |= {f"option {name}": _text(value) for name, value in report.command.items()}
    for variant in report.variants:
        policy = evidence.policy(variant.recipe)
        if policy is not None:
            facts["policy"] = f"{policy.name}: {policy.summary}"
            facts["alpha"] = f"{policy.alpha:g}"
            break
    return facts


def tuple_facts(evidence: RunEvidence, recipe: str) -> Facts:
    """Return the members of a deployable tuple."""
    facts: Facts = {}
    adopted = evidence.kept(ADOPT, recipe)
    quantized = evidence.kept(QUANTIZE, recipe) or adopted
    if quantized is not None:
        made = quantized.parameters
        facts["weights' digest"] = quantized.result.weights_digest
        facts["quantization"] = _text(made.quantization.model_dump())
        for name, version in quantized.result.versions.items():
            facts[f"version of {name}"] = version
        facts["environment quantize"] = made.environment
        facts["calibration data"] = _text(made.calibration_data)
    served = evidence.kept(SCREEN, recipe)
    if served is not None:
        facts["engine's version"] = served.result.engine_version or "-"
        facts["environment serve"] = served.parameters.engine
        for name, value in served.parameters.serving.engine_arguments.items():
            facts[f"serving --{name}"] = _text(value)
        if speculative := served.parameters.serving.speculative:
            for name, value in speculative.to_dict().items():
                facts[f"speculative {name}"] = _text(value)
        for name, text in served.parameters.serving.environment.items():
            facts[f"serving ${name}"] = text
        for name, value in served.parameters.hardware.model_dump().items():
            facts[f"hardware {name}"] = _text(value)
    answers = evidence.collect_answers(recipe)
    if answers:
        facts["environment evaluate"] = answers[0][1].parameters.environment
    return facts


def tuple_table(evidence: RunEvidence) -> Table:
    """Return the tuples of baseline and variants."""
    sides = [BASELINE, *evidence.recipes]
    facts = {side: tuple_facts(evidence, side) for side in sides}
    names = list(dict.fromkeys(name for of_side in facts.values() for name in of_side))
    return Table(
        ("of the tuple", *sides),
        [(name, *(facts[side].get(name, "-") for side in sides)) for name in names],
        text=frozenset(range(len(sides) + 1)),
    )


def screened_table(report: RunReport) -> Table | None:
    """Return the arms of `--screen`, if any."""
    if not report.screened:
        return None
    rows = run_outcome.screened_rows(report.screened)
    return Table(tuple(rows[0]), [tuple(row.values()) for row in rows])


def stage_table(report: RunReport) -> Table:
    """Return every stage with its key."""
    return Table(
        ("stage", "variant", "status", "seconds", "key"),
        [(s.name, s.variant, s.status, f"{s.seconds:.1f}", s.key or "-") for s in report.stages],
        text=frozenset({0, 1, 2, 4}),
    )


def policies_as_json(evidence: RunEvidence) -> dict[str, str]:
    """Return the judged variants' policies without duplicates."""
    found: dict[str, list[str]] = {}
    for variant in evidence.report.variants:
        judge = evidence.record("judge", variant.recipe)
        if judge is not None:
            text = json.dumps(judge.parameters, indent=1)
            found.setdefault(text, []).append(variant.recipe)
    return {", ".join(recipes): text for text, recipes in found.items()}


def _text(value: Any) -> str:
    if value is None:
        return "-"
    return without_password(value if isinstance(value, str) else json.dumps(value))


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
    """Return HTML."""
    report = evidence.report
    sections = variant_sections(evidence)
    tradeoff = tradeoff_figures(report, evidence.baseline_bytes())
    word = run_outcome.outcome(report)
    return _render(
        [*(s.figure for s in sections if s.figure), *tradeoff],
        title=f"{report.options.checkpoint or 'candidate'}: {word}",
        report=report,
        outcome=word,
        sentence=run_outcome.headline(report),
        serving=[
            *run_outcome.baseline_lines(report),
            *run_outcome.serving_lines(report.options),
            *run_outcome.drafting_lines(report),
        ],
        variants=sections,
        screened=screened_table(report),
        screened_title=run_outcome.SCREENED,
        tradeoff=tradeoff,
        examples=answers.changed_answers(evidence),
        command=command_line(report.kind, report.command),
        facts=run_facts(evidence),
        tuples=tuple_table(evidence),
        policies=policies_as_json(evidence),
        stages=stage_table(report),
        missing=evidence.missing,
    )


def variant_sections(evidence: RunEvidence) -> list[VariantSection]:
    """Return every variant, also without a verdict."""
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
        size=run_outcome.format_megabytes(variant.weights_bytes, nothing=""),
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
    """Return plotly.js without importing the package's code."""
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
    """Return a script's name in a content security policy."""
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
