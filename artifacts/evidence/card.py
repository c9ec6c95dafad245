"""The model card (README.md) of a judged variant, and its results in the Hub's format.

All facts come from the stages' records; the card omits or marks unknown ones.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from artifacts.deployable import Deployable
from artifacts.evidence.bundle import BundleVerdict
from artifacts.evidence.card_text import (
    describe_base,
    describe_calibration,
    describe_hardware,
    describe_kv_cache,
    describe_license,
    describe_maker,
    describe_noise,
    describe_optimization,
    describe_speculation,
    percent,
)
from artifacts.verdict_inputs import VerdictInputs
from eval_gates.quality_result import QualityResult
from eval_gates.speed.load_run import Side
from eval_gates.speed.report import SpeedGateResult
from eval_gates.suites.suite_kind import kind_of
from pipeline import __version__
from pipeline.checkpoint.weights_folder_files import CARD, RESULTS
from pipeline.core.escape import (
    MAX_NAME_CHARACTERS,
    clip,
    make_visible,
    markdown,
    markdown_code,
    markdown_with_code,
    one_line,
)
from pipeline.core.process_environment import SAFE_PATH_VARIABLES
from pipeline.core.stage import TypedStageRecord
from pipeline.stages.evaluate import EvaluateParameters, EvaluateResult
from recipes.engines import LaunchSpec, find_engine
from recipes.quantizers.adopted import AdoptedQuantization

Evaluation = TypedStageRecord[EvaluateParameters, EvaluateResult]

TEMPLATE = Path(__file__).parents[1] / "templates" / "model_card.md.j2"


def write_card(
    folder: Path,
    verdict: BundleVerdict,
    judged: VerdictInputs,
    deployable: Deployable,
    evaluations: Mapping[str, Evaluation],
) -> None:
    """Write README.md, and `.eval_results/` for benchmarks with all questions asked.

    `evaluations` are the candidate's last round of each suite.
    """
    text = card_text(verdict, judged, deployable, evaluations)
    (folder / CARD).write_text(text, encoding="utf-8")
    entries = hub_entries(verdict, evaluations)
    if entries:
        import yaml

        place = folder / RESULTS
        place.parent.mkdir(exist_ok=True)
        place.write_text(yaml.safe_dump(entries, sort_keys=False), encoding="utf-8")


def card_text(
    verdict: BundleVerdict,
    judged: VerdictInputs,
    deployable: Deployable,
    evaluations: Mapping[str, Evaluation],
) -> str:
    """Return the card: front matter and body."""
    metadata = front_matter(verdict, judged, deployable, evaluations)
    return f"---\n{metadata}\n---\n\n{body(verdict, judged, deployable)}"


def front_matter(
    verdict: BundleVerdict,
    judged: VerdictInputs,
    deployable: Deployable,
    evaluations: Mapping[str, Evaluation],
) -> str:
    """Return the metadata as YAML with `model-index`, by the Hub's library."""
    from huggingface_hub import EvalResult, ModelCardData

    source = verdict.source
    facts: dict[str, Any] = {
        "base_model": source.base_model or None,
        "base_model_relation": "quantized" if source.base_model else None,
        "license": short(source.license),
        "license_name": short(source.license_name),
        "license_link": short(source.license_link),
    }
    results = []
    for gate in verdict.variant.quality:
        dataset, name = dataset_of(gate, evaluations[gate.name])
        results.append(
            EvalResult(
                task_type="text-generation",
                dataset_type=dataset,
                dataset_name=name,
                dataset_args={"questions": gate.n, "of": gate.planned},
                metric_type=gate.metric,
                metric_name=f"{gate.metric}, in points of 100",
                metric_value=percent(gate.candidate),
            )
        )
    data = ModelCardData(
        model_name=title(verdict),
        eval_results=results or None,
        library_name=deployable.serving.engine,
        pipeline_tag="text-generation",
        tags=tags(verdict, judged, deployable),
        **{key: value for key, value in facts.items() if value is not None},
    )
    return str(data.to_yaml())


def short(text: str | None) -> str | None:
    """Shorten a fact from an untrusted card; None if it is empty."""
    return clip(one_line(text), MAX_NAME_CHARACTERS) if text else None


def body(verdict: BundleVerdict, judged: VerdictInputs, deployable: Deployable) -> str:
    """Return the card below its front matter."""
    import jinja2

    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # noqa: S701 - Markdown, for which the filters below are
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(
        markdown=lambda text: markdown(str(text)),
        code=lambda text: markdown_code(str(text)),
        fence=fence,
        sentence=lambda text: markdown_with_code(text).rstrip("."),
        capitalize_first=lambda text: text[:1].upper() + text[1:],
    )
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    return str(template.render(facts(verdict, judged, deployable)))


def facts(verdict: BundleVerdict, judged: VerdictInputs, deployable: Deployable) -> dict[str, Any]:
    """Return the values for the template."""
    variant, source = verdict.variant, verdict.source
    judge, result = judged.judge.parameters, judged.quantize.result
    quantization = judged.quantize.parameters.quantization
    ratio = judged.check_weights.result.size_ratio
    engine = find_engine(deployable.serving.engine)
    return {
        "title": title(verdict),
        "override": verdict.override,
        "verdict": variant.verdict,
        "reason": variant.reason,
        "recipe": verdict.recipe,
        "policy": judge.policy.name,
        "describe_base": describe_base(source),
        "baseline": source.as_baseline,
        "describe_license": describe_license(source),
        "gigabytes": f"{result.weights_bytes / 1e9:.3g}",
        "size_ratio": f"{100 * ratio:.0f}" if ratio else "",
        "quantization_description": markdown(quantization.format_description(result.group_size)),
        "describe_maker": describe_maker(quantization, verdict.recipe),
        "describe_optimization": describe_optimization(quantization, result),
        "ignored": ", ".join(f"`{markdown_code(each)}`" for each in quantization.ignore),
        "describe_calibration": describe_calibration(quantization, result),
        "describe_noise": describe_noise(judged.check_weights.result),
        "kv_cache": describe_kv_cache(deployable, quantization),
        "speculative": describe_speculation(deployable),
        "cpu_overrides": judge.profile.cpu_overrides if judge.profile is not None else {},
        "hardware": describe_hardware(deployable.hardware),
        "engine_version": deployable.engine_version,
        "kernels": "; ".join(
            f"{n.replace('_', ' ')} {k}" for n, k in (deployable.kernels or {}).items()
        ),
        "engine": engine,
        "install_command": engine.install_command(
            deployable.accelerator, deployable.engine_version
        ),
        "serve_command": serve_command(deployable, trust_remote_code=judged.trust_remote_code),
        "trust_remote_code": judged.trust_remote_code,
        "prepare_command": verdict.command,
        "creation": creation(verdict, judged, deployable),
        "bound_level": f"{100 * (1 - max(gate.alpha or 0 for gate in variant.quality)):.4g}",
        "gates": variant.gates,
        "loads": {claim.name: typical_loads(claim) for claim in variant.speed},
        "attempted": verdict.attempted,
    }


def typical_loads(claim: SpeedGateResult) -> list[tuple[str, list[str]]]:
    """Return medians of the loads' figures as text, by measured side."""
    figures = ("output_tokens_per_s", "ttft_ms_p50", "ttft_ms_p95", "tpot_ms_p50", "tpot_ms_p95")
    sides: dict[str, Side] = {"baseline": "baseline", "variant": "candidate"}
    return [
        (name, ["-" if value is None else f"{value:,.1f}" for value in found])
        for name, side in sides.items()
        if any(found := [claim.typical(side, figure) for figure in figures])
    ]


def title(verdict: BundleVerdict) -> str:
    """Return the registered name and the recipe."""
    return f"{verdict.registered_name}-{verdict.recipe}"


def tags(verdict: BundleVerdict, judged: VerdictInputs, deployable: Deployable) -> list[str]:
    """Return the customary tags of such checkpoints."""
    versions = judged.quantize.result.versions
    quantization = judged.quantize.parameters.quantization
    made = [judged.judge.parameters.family, quantization.kind]
    if isinstance(quantization, AdoptedQuantization) and quantization.is_source:
        made = []  # whose weights keep their format
    libraries = [name for name in ("llmcompressor", "compressed-tensors") if name in versions]
    engine = deployable.serving.engine
    return list(dict.fromkeys([*made, engine, *libraries, verdict.recipe]))


def serve_command(deployable: Deployable, *, trust_remote_code: bool) -> str:
    """Return the engine's command with exactly the judged arguments and variables.

    It runs in the weights' folder; a variable prevents imports from there. Variables that only
    prepare reads are left out.
    """
    serving = deployable.serving
    drafts = serving.speculative is not None and serving.speculative.model is not None
    arguments = serving.for_engine("DRAFT" if drafts else "")
    launch = LaunchSpec(".", arguments, trust_remote_code)
    words = find_engine(serving.engine).public_command(deployable.accelerator, launch)
    environment = {**SAFE_PATH_VARIABLES, **serving.environment}
    variables = [
        f"{name}={shlex.quote(text)}"
        for name, text in environment.items()
        if not name.startswith("PREPARE_")
    ]
    return " \\\n  ".join(fence(line) for line in [*variables, shlex.join(words)])


def fence(command: str) -> str:
    """Return a quoted command on one line, so that it cannot end its code block.

    '<' moves out of the quotes: the shell word stays the same, and no HTML results.
    """
    return make_visible(command).replace("\n", "\\n").replace("<", "'\\<'")


def creation(
    verdict: BundleVerdict, judged: VerdictInputs, deployable: Deployable
) -> list[tuple[str, str]]:
    """Return versions, digests and times of the making."""
    result = judged.quantize.result
    rows = [
        ("source", f"`{verdict.source.digest}`"),
        ("source's revision", verdict.source.revision and f"`{verdict.source.revision}`"),
        *variant_rows(judged),
        ("prepare", __version__),
        *sorted((name, str(text)) for name, text in result.versions.items()),
        (find_engine(deployable.serving.engine).title, deployable.engine_version),
        ("calibration tokens", f"`{result.calibration_digest or ''}`".replace("``", "")),
        ("weights", f"`{deployable.weights}`"),
        ("quantized", judged.quantize.record.finished),
        ("judged", judged.judge.record.finished),
        ("run", verdict.run),
    ]
    return [(name, text) for name, text in rows if text]


def variant_rows(judged: VerdictInputs) -> list[tuple[str, str]]:
    """Return what is known of weights that others made."""
    quantization = judged.quantize.parameters.quantization
    if not isinstance(quantization, AdoptedQuantization) or quantization.is_source:
        return []
    return [
        ("variant's origin", markdown_code(quantization.origin)),
        ("variant's revision", quantization.revision),
        ("variant's digest", f"`{quantization.digest}`"),
        ("variant's license", quantization.license or "not known: its folder does not name it"),
        ("not compared with the source", judged.check_weights.result.not_compared),
    ]


def dataset_of(gate: QualityResult, evaluation: Evaluation) -> tuple[str, str]:
    """Return a suite's dataset on the Hub, or in the policy, and its name with the share asked."""
    suite = evaluation.parameters.suite
    kind = kind_of(suite)
    if known := kind.benchmark:
        return known.dataset, f"{known.title}, {gate.n:,} of {known.questions:,} questions"
    task = kind.title(suite) or gate.name
    return task, f"{task}, {gate.n:,} of {gate.planned:,} questions"


def hub_entries(
    verdict: BundleVerdict, evaluations: Mapping[str, Evaluation]
) -> list[dict[str, Any]]:
    """Return leaderboard results of benchmarks with all questions asked.

    The format is the Hub's `.eval_results/*.yaml`.
    """
    from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml

    entries = []
    for gate in verdict.variant.quality:
        evaluation = evaluations[gate.name]
        suite = evaluation.parameters.suite
        known = kind_of(suite).benchmark
        if known is not None and gate.n == known.questions:
            entries.append(
                EvalResultEntry(
                    dataset_id=known.dataset,
                    task_id=known.task,
                    value=percent(gate.candidate),
                    date=evaluation.record.finished,
                    notes=f"{gate.metric}, format {suite.prompt_format}, quantized by "
                    f"{verdict.recipe}",
                )
            )
    return eval_result_entries_to_yaml(entries)
