"""The model card (README.md) of a judged variant."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.filesize import decimal

from artifacts.deployable import Deployable
from artifacts.evidence.bundle import BundleVerdict
from eval_gates.suites.suite_kind import kind_of
from pipeline.stages.evidence import Evidence
from prepare import __version__, escape
from prepare.process_environment import SAFE_PATH_VARIABLES
from recipes.checkpoints.weight_files import CARD, RESULTS
from recipes.engines import LaunchSpec, find_engine
from recipes.engines.engine import KV_DTYPE
from recipes.quantizers.adopted import AdoptedQuantization

TEMPLATE = Path(__file__).parents[1] / "templates" / "model_card.md.j2"


@dataclass(frozen=True)
class Card:
    """Attributes of the card's template."""

    verdict: BundleVerdict
    judged: Evidence

    @property
    def deployable(self) -> Deployable:
        return Deployable.of(self.judged)

    def write(self, folder: Path) -> None:
        """Write README.md and `.eval_results/`."""
        (folder / CARD).write_text(self.text(), encoding="utf-8")
        if entries := self.hub_entries():
            import yaml

            place = folder / RESULTS
            place.parent.mkdir(exist_ok=True)
            place.write_text(yaml.safe_dump(entries, sort_keys=False), encoding="utf-8")

    def text(self) -> str:
        """Return front matter and body."""
        import jinja2

        environment = jinja2.Environment(
            undefined=jinja2.StrictUndefined,
            autoescape=False,  # noqa: S701 - Markdown, for which the filters below are
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
        )
        environment.filters.update(
            markdown=lambda text: escape.markdown(str(text)),
            code=lambda text: escape.markdown_code(str(text)),
            link=escape.markdown_link,
            size=decimal,
            fence=fence,
            sentence=lambda text: escape.markdown_with_code(text).rstrip("."),
        )
        template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
        verdict = self.verdict
        weights = self.judged.weights
        body = template.render(
            card=self,
            verdict=verdict,
            variant=verdict.variant,
            source=verdict.source,
            judge=self.judged.judge.parameters,
            result=weights.result,
            checked=self.judged.checked_weights.result,
            quantization=self.quantization,
            deployable=self.deployable,
            engine=find_engine(self.deployable.serving.engine),
            trust_remote_code=self.judged.trust_remote_code,
        )
        return f"---\n{self._front_matter()}\n---\n\n{body}"

    def _front_matter(self) -> str:
        from huggingface_hub import EvalResult, ModelCardData

        source = self.verdict.source
        results = []
        engine = self.deployable.serving.engine
        for gate in self.verdict.variant.quality:
            suite = self.judged.evaluations[gate.name].parameters.suite
            known = kind_of(suite).benchmark
            dataset = getattr(suite, "task", gate.name)
            unit = f"clusters by {gate.cluster}" if gate.cluster else "questions"
            name = f"{dataset}, {gate.n:,} of {gate.planned:,} {unit}"
            if known is not None:
                dataset = known.dataset
                name = f"{known.title}, {gate.n:,} of {known.questions:,} questions"
                if gate.cluster:
                    name = f"{known.title}, {gate.n:,} of {gate.planned:,} {unit}"
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
        facts = {
            "base_model": source.base_model,
            "base_model_relation": "quantized" if source.base_model else "",
            # Text of other people.
            **{
                name: escape.clip(escape.one_line(text), escape.MAX_NAME_CHARACTERS)
                for name in ("license", "license_name", "license_link")
                if (text := getattr(source, name))
            },
        }
        made = [self.judged.judge.parameters.family, self.quantization.kind]
        if self.adopted is not None and self.adopted.is_source:
            made = []
        versions = self.judged.weights.result.versions
        libraries = {"llmcompressor", "compressed-tensors"} & versions.keys()
        data = ModelCardData(
            model_name=self.title,
            eval_results=results or None,
            library_name=engine,
            pipeline_tag="text-generation",
            tags=list(dict.fromkeys([*made, engine, *sorted(libraries), self.verdict.recipe])),
            **{key: value for key, value in facts.items() if value},  # type: ignore[arg-type]
        )
        return str(data.to_yaml())

    def hub_entries(self) -> list[dict[str, Any]]:
        """Return leaderboard entries, if all questions were asked."""
        from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml

        entries = []
        for gate in self.verdict.variant.quality:
            evaluation = self.judged.evaluations[gate.name]
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
                        f"{self.verdict.recipe}",
                    )
                )
        return eval_result_entries_to_yaml(entries)

    @property
    def title(self) -> str:
        return f"{self.verdict.registered_name}-{self.verdict.recipe}"

    @property
    def quantization(self) -> Any:
        return self.judged.weights.parameters.quantization

    @property
    def adopted(self) -> AdoptedQuantization | None:
        """Others' making of the weights, if any."""
        made = self.quantization
        return made if isinstance(made, AdoptedQuantization) else None

    @property
    def kv_cache(self) -> str:
        """Type of the KV cache and its effect on attention.

        With an FP8 cache on a GPU, vLLM computes attention in FP8, too, by default with scale 1.0.
        """
        dtype = str(self.deployable.serving.engine_arguments.get(KV_DTYPE, "auto"))
        name = f"`{escape.markdown_code(dtype)}`"
        if not dtype.startswith("fp8") or self.deployable.accelerator != "cuda":
            return name
        scales = (
            "queries' scales are 1.0, keys' and values' are calibrated"
            if self.quantization.kv_cache_strategy
            else "the scales of queries, keys and values are 1.0"
        )
        return f"{name}, and so is attention: queries are quantized as well; {scales}"

    @property
    def has_private(self) -> bool:
        """Whether a suite's texts stay in the store."""
        return any(
            kind_of(s).private_keys for s in self.judged.judge.parameters.policy.suites.values()
        )

    @property
    def hardware(self) -> str:
        machine = self.deployable.hardware
        if machine.accelerator != "cpu":
            return escape.markdown(machine.gpu or "unknown hardware")
        features = "".join(f", {name}" for name in machine.cpu_features or ())
        cores = machine.cores or "?"
        return escape.markdown(f"CPU ({machine.cpu or 'unknown'}, {cores} cores{features})")

    @property
    def kernels(self) -> str:
        kernels = self.deployable.kernels or {}
        return "; ".join(f"{name.replace('_', ' ')} {kernel}" for name, kernel in kernels.items())

    @property
    def order(self) -> list[str]:
        """The variants of `--until pass`, from the largest down; else none."""
        return self.judged.judge.parameters.trial.descent

    @property
    def bound_level(self) -> str:
        return f"{100 * (1 - max(gate.alpha or 0 for gate in self.verdict.variant.quality)):.4g}"

    @property
    def serve_command(self) -> str:
        """Command with exactly the judged arguments and variables.

        It runs in the weights' folder; a variable prevents imports from there.
        """
        serving = self.deployable.serving
        drafts = serving.speculative is not None and serving.speculative.model is not None
        arguments = serving.for_engine("DRAFT" if drafts else "")
        launch = LaunchSpec(".", arguments, self.judged.trust_remote_code)
        words = find_engine(serving.engine).public_command(self.deployable.accelerator, launch)
        variables = [
            f"{name}={shlex.quote(text)}"
            for name, text in {**SAFE_PATH_VARIABLES, **serving.environment}.items()
            if not name.startswith("PREPARE_")
        ]
        return " \\\n  ".join(fence(line) for line in [*variables, shlex.join(words)])

    @property
    def creation(self) -> list[tuple[str, str]]:
        """Versions, digests and times of the making."""
        result = self.judged.weights.result
        source = self.verdict.source
        adopted = self.adopted
        rows: list[tuple[str, str | None]] = [
            ("source", f"`{source.digest}`"),
            ("source's revision", source.revision and f"`{source.revision}`"),
        ]
        if adopted is not None and not adopted.is_source:
            unknown = "not known: its folder does not name it"
            rows += [
                ("variant's origin", escape.markdown_code(adopted.origin)),
                ("variant's revision", adopted.revision),
                ("variant's digest", f"`{adopted.digest}`"),
                ("variant's license", adopted.license or unknown),
                ("not compared with the source", self.judged.checked_weights.result.not_compared),
            ]
        calibration = result.calibration_digest
        rows += [
            ("prepare", __version__),
            *sorted((name, str(text)) for name, text in result.versions.items()),
            (find_engine(self.deployable.serving.engine).title, self.deployable.engine_version),
            ("calibration tokens", calibration and f"`{calibration}`"),
            ("weights", f"`{self.deployable.weights}`"),
            ("quantized", self.judged.weights.record.finished),
            ("judged", self.judged.judge.record.finished),
            ("run", self.verdict.run),
        ]
        return [(name, text) for name, text in rows if text]


def percent(score: float) -> float:
    """Format with two decimal places."""
    return round(100 * score, 2)


def fence(command: str) -> str:
    """Return a quoted command that cannot end its code block.

    '<' moves out of the quotes: the shell word stays the same, and no HTML results.
    """
    return escape.make_visible(command).replace("\n", "\\n").replace("<", "'\\<'")
