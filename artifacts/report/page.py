"""Builds the report: one HTML file.

Its content security policy permits only inline content and two scripts by digest.
"""

from __future__ import annotations

import base64
import hashlib
import json
from importlib import resources
from typing import Any

from rich.filesize import decimal

from artifacts import run_outcome
from artifacts.report import answers
from artifacts.report.figures import (
    Figure,
    Table,
    concurrency_figure,
    curve_figures,
    gate_figure,
    tradeoff_figures,
)
from artifacts.report.reported_run import ReportedRun
from artifacts.requests import without_password
from artifacts.run_record import RunReport
from eval_gates.gate_result import format_percent
from eval_gates.quality_result import KEPT_SHARE
from pipeline.stages.adopt import ADOPT
from pipeline.stages.check_weights import CHECK_WEIGHTS
from pipeline.stages.quantize import QUANTIZE
from pipeline.stages.sanity import SANITY
from pipeline.stages.verdict import JUDGE
from prepare import __version__
from prepare.errors import from_dict
from prepare.escape import make_visible
from recipes.catalog import BASELINE
from recipes.quantizers.preset import WithOtherSchemes

Facts = dict[str, str]
PAIR_FACTS = ("kv_cache", "kv_bytes_a_token", "kv_cache_tokens")
PAIR_COLUMNS = (
    "pair",
    "weights",
    "KV cache",
    "bytes a token",
    "KV tokens",
    "tokens kept",
    "nats a token lost",
    "gates passed",
    "verdict",
)


def run_facts(evidence: ReportedRun) -> Facts:
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
    asked = report.request.to_dict()
    resolved = report.resolved.model_dump(exclude_defaults=True)
    facts |= {f"option {name}": _text(value) for name, value in asked.items()}
    return facts | {f"resolved {name}": _text(value) for name, value in resolved.items()}


def tuple_facts(evidence: ReportedRun, recipe: str) -> Facts:
    """Return the members of a deployable tuple."""
    facts: dict[str, Any] = {}
    adopted = evidence.kept(ADOPT, recipe)
    quantized = evidence.kept(QUANTIZE, recipe) or adopted
    if quantized is not None:
        made = quantized.parameters
        facts |= {
            "weights' digest": quantized.result.weights_digest,
            "quantization": made.quantization.model_dump(),
            **{f"version of {name}": text for name, text in quantized.result.versions.items()},
            "environment quantize": made.environment,
            "calibration data": made.calibration_data,
        }
    if (served := evidence.kept(SANITY, recipe)) is not None:
        facts["engine's version"] = served.result.engine_version
        facts["environment serve"] = served.parameters.engine
        serving = served.parameters.serving
        for word, values in (
            ("serving --", serving.engine_arguments),
            ("speculative ", serving.speculative.to_dict() if serving.speculative else {}),
            ("serving $", serving.environment),
            ("hardware ", served.parameters.hardware.model_dump()),
        ):
            facts |= {f"{word}{name}": value for name, value in values.items()}
        started = served.result.server.__pydantic_extra__ or {}
        facts |= {f"started with {fact.replace('_', ' ')}": told for fact, told in started.items()}
    if answers := evidence.collect_answers(recipe):
        facts["environment evaluate"] = answers[0][1].parameters.environment
    return {name: _text(value) for name, value in facts.items()}


def tuple_table(evidence: ReportedRun) -> Table:
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


def pairs_table(evidence: ReportedRun) -> Table | None:
    """Return the gated pairs of weights and KV cache (`--kv`), if any."""
    if not getattr(evidence.report.request, "kv", ()):
        return None
    rows = []
    for variant in evidence.report.variants:
        served = evidence.kept(SANITY, variant.recipe)
        told = (served.result.server.__pydantic_extra__ or {}) if served is not None else {}
        kept = next((gate for gate in variant.quality if gate.metric == KEPT_SHARE), None)
        nats = kept.nats if kept is not None else None
        blocking = [gate for gate in variant.gates if gate.tier != "advisory"]
        passed = sum(gate.verdict == "pass" for gate in blocking)
        rows.append(
            (
                variant.recipe,
                decimal(variant.weights_bytes) if variant.weights_bytes else "-",
                *(_text(told.get(fact)) for fact in PAIR_FACTS),
                format_percent(kept.candidate, 1) if kept is not None else "-",
                f"{nats.mean:.3f}" if nats is not None else "-",
                f"{passed} of {len(blocking)}",
                run_outcome.verdict_word(variant),
            )
        )
    return Table(PAIR_COLUMNS, rows, text=frozenset({0, 2, 8}))


def policies_as_json(evidence: ReportedRun) -> dict[str, str]:
    """Return the judged variants' policies without duplicates."""
    recipes_of: dict[str, list[str]] = {}
    for variant in evidence.report.variants:
        if (judge := evidence.kept(JUDGE, variant.recipe)) is not None:
            text = json.dumps(judge.record.parameters, indent=1)
            recipes_of.setdefault(text, []).append(variant.recipe)
    return {", ".join(recipes): text for text, recipes in recipes_of.items()}


def _text(value: Any) -> str:
    if value is None:
        return "-"
    return without_password(value if isinstance(value, str) else json.dumps(value))


def run_page(evidence: ReportedRun) -> str:
    """Return HTML."""
    report = evidence.report
    sections = variant_sections(evidence)
    tradeoff = tradeoff_figures(report, _baseline_bytes(evidence))
    if (by_load := concurrency_figure(report)) is not None:
        tradeoff.append(by_load)
    word = run_outcome.outcome(report)
    return _render(
        [
            *(s["figure"] for s in sections if s["figure"]),
            *(figure for section in sections for figure in section["curves"]),
            *tradeoff,
        ],
        title=f"{report.resolved.checkpoint}: {word}",
        report=report,
        error=from_dict(report.error) if report.error else None,
        outcome=word,
        sentence=run_outcome.headline(report),
        serving=run_outcome.side_lines(report),
        variants=sections,
        pairs=pairs_table(evidence),
        screened=screened_table(report),
        screened_title=run_outcome.SCREENED,
        tradeoff=tradeoff,
        examples=answers.changed_answers(evidence),
        command=report.request.line(),
        facts=run_facts(evidence),
        tuples=tuple_table(evidence),
        policies=policies_as_json(evidence),
        stages=Table(
            ("stage", "variant", "status", "seconds", "key"),
            [
                (s.name, s.variant, s.status, f"{s.seconds:.1f}", s.key or "-")
                for s in report.stages
            ],
            text=frozenset({0, 1, 2, 4}),
        ),
        missing=evidence.missing,
    )


def _baseline_bytes(evidence: ReportedRun) -> int | None:
    """Return the unquantized weights' size from any variant."""
    for recipe in evidence.recipes:
        checked = evidence.kept(CHECK_WEIGHTS, recipe)
        if checked is not None and checked.result.size_ratio and checked.result.weights_bytes:
            return round(checked.result.weights_bytes / checked.result.size_ratio)
    return None


def variant_sections(evidence: ReportedRun) -> list[dict[str, Any]]:
    """Return the template's facts about every variant, also without a verdict."""
    report = evidence.report
    variants = {variant.recipe: variant for variant in report.variants}
    sections = []
    for number, recipe in enumerate(evidence.recipes):
        judged = variants.get(recipe)
        gates = judged.gates if judged else []
        reason = f"the run is {report.status}: it ended before this variant was judged"
        reason, _, hint = (judged.reason if judged else reason).partition("\n")
        collected = [] if gates else evidence.collect_answers(recipe)
        sections.append(
            {
                "recipe": recipe,
                "verdict": run_outcome.verdict_word(judged) if judged else "no verdict",
                "reason": reason,
                "hint": hint,
                "size": decimal(judged.weights_bytes) if judged and judged.weights_bytes else "",
                "others": other_formats(evidence, recipe),
                "gates": gates,
                "figure": gate_figure(number, judged) if judged else None,
                "curves": curve_figures(number, judged) if judged else [],
                "collected": [
                    f"{suite}: {format_percent(kept.result.score, 1)} of {kept.result.n} questions"
                    for suite, kept in collected
                    if kept.result.score is not None
                ],
            }
        )
    return sections


def other_formats(evidence: ReportedRun, recipe: str) -> dict[str, str]:
    """Return the modules in another format than the rest, by that format."""
    made = evidence.kept(QUANTIZE, recipe)
    quantization = made.parameters.quantization if made is not None else None
    if not isinstance(quantization, WithOtherSchemes):
        return {}
    return {scheme: ", ".join(words) for scheme, words in quantization.others.items()}


def plotly_script() -> str:
    """Return plotly.js without importing the package's code."""
    script = resources.files("plotly") / "package_data" / "plotly.min.js"
    return script.read_text(encoding="utf-8")


def _render(figures: list[Figure], **context: Any) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("artifacts.report"),
        autoescape=True,
        finalize=lambda value: make_visible(value) if type(value) is str else value,
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


def source_of(script: str) -> str:
    """Return a script's name in a content security policy."""
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
