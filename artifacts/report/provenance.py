"""Origin of a run's figures: command, checkpoint, deployable tuples, policy, machine."""

from __future__ import annotations

import json
from typing import Any

from artifacts.command_line import without_password
from artifacts.report.figures import Table
from artifacts.report.run_evidence import RunEvidence
from artifacts.run_record import RunReport
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
    """Return the members of a verdict's deployable tuple."""
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
    """Return the tuples of the baseline and all variants side by side."""
    sides = [BASELINE, *evidence.recipes]
    facts = {side: tuple_facts(evidence, side) for side in sides}
    names = list(dict.fromkeys(name for of_side in facts.values() for name in of_side))
    return Table(
        ("of the tuple", *sides),
        [(name, *(facts[side].get(name, "-") for side in sides)) for name in names],
        text=frozenset(range(len(sides) + 1)),
    )


def stage_table(report: RunReport) -> Table:
    """Return every stage with its key in the store."""
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
