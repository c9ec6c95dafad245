"""Builds a report's page from template, style, scripts and figures: one HTML file.

The content security policy permits only inline content and two scripts by digest, so the page sends
no request. Jinja escapes all text; the figures' JSON escapes `<`, `>`, `&` and `'`.
"""

from __future__ import annotations

import base64
import hashlib
from importlib import resources
from typing import Any

from artifacts import run_outcome
from artifacts.command_line import command_line
from artifacts.report import (
    flipped_answers,
    margins,
    provenance,
    quality,
    score_table,
    speed,
)
from artifacts.report.figure import Figure, UniqueIds
from artifacts.report.run_evidence import RunEvidence
from pipeline import __version__
from pipeline.core.untrusted.text import make_visible


def run_page(evidence: RunEvidence) -> str:
    """Return the report of one run as HTML."""
    names = UniqueIds()
    figures = {
        "quality": quality.quality_figures(evidence, names),
        "margins": margins.margin_figures(evidence, names),
        "flips": flipped_answers.flip_figures(evidence, names),
        "speed": speed.speed_figures(evidence, names),
    }
    word = run_outcome.outcome(evidence.report)
    return _render(
        "run.html.j2",
        figures,
        title=f"{evidence.report.options.checkpoint or 'candidate'}: {word}",
        report=evidence.report,
        outcome=word,
        sentence=run_outcome.headline(evidence.report),
        serving=[
            *run_outcome.baseline_lines(evidence.report),
            *run_outcome.serving_lines(evidence.report.options),
            *run_outcome.drafting_lines(evidence.report),
            *run_outcome.attribution_lines(evidence.report),
        ],
        variants=score_table.variant_parts(evidence),
        examples=flipped_answers.changed_answers(evidence),
        command=command_line(evidence.report.kind, evidence.report.command),
        facts=provenance.run_facts(evidence),
        tuples=provenance.tuple_table(evidence),
        policies=provenance.policies_as_json(evidence),
        stages=provenance.stage_table(evidence.report),
        missing=evidence.missing,
    )


def plotly_script() -> str:
    """Return plotly.js of the package without importing its Python code."""
    script = resources.files("plotly") / "package_data" / "plotly.min.js"
    return script.read_text(encoding="utf-8")


def _render(template: str, figures: dict[str, list[Figure]], **context: Any) -> str:
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
    plotting = plotly_script() if any(figures.values()) else ""
    return environment.get_template(template).render(
        figures=figures,
        drawn={figure.name: figure.drawn for found in figures.values() for figure in found},
        style=loaded.get_source(environment, "report.css")[0],
        scripts=[script for script in (plotting, drawing) if script],
        script_sources=" ".join(source_of(script) for script in (plotting, drawing) if script),
        version=__version__,
        **context,
    )


def _make_text_visible(value: Any) -> Any:
    """Make control characters of a text visible, except in markup."""
    return make_visible(value) if type(value) is str else value


def source_of(script: str) -> str:
    """Return an inline script's name in a content security policy."""
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
