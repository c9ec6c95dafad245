"""Lays out a run as stages with their keys, before anything is done.

A stage's key is the digest of its name, revision, parameters and inputs' keys: everything that
can change its output. So the whole plan, and what of it is already in the store, is known from
the start; only the promotion waits for the verdicts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from pipeline.checkpoint import Checkpoint
from pipeline.data_sources import SourceResolver
from pipeline.digest import digest_json
from pipeline.hardware import machine
from pipeline.records import StageReference, StageSpec
from pipeline.serving import ServingArguments
from pipeline.stages import stage_module
from recipes.schema import AwqQuantization, Policy, Recipe, ServingProfile

QUESTION_SEED = 20240814


@dataclass(frozen=True)
class VariantPlan:
    """One recipe's stages, in the order they run."""

    recipe: Recipe
    arguments: ServingArguments
    model: Path
    stages: Mapping[str, StageSpec]
    served: tuple[str, ...]
    trust_remote_code: bool


@dataclass(frozen=True)
class Plan:
    """A whole run: shared stages, the baseline, then the variants."""

    checkpoint: Checkpoint
    profile: ServingProfile
    policy: Policy
    shared: Mapping[str, StageSpec]
    baseline: VariantPlan
    variants: tuple[VariantPlan, ...]

    def stages(self) -> list[StageSpec]:
        """Every stage that is known before the verdicts, about in the order in which they run."""
        made = [[v.stages["quantize"], v.stages["verify"]] for v in self.variants]
        measured = [[v.stages[role] for role in v.served] for v in (self.baseline, *self.variants)]
        judged = [v.stages["judge"] for v in self.variants]
        return [*self.shared.values(), *chain(*made), *chain(*measured), *judged]


def stage_spec(
    stage: str,
    variant: str,
    parameters: dict[str, Any],
    inputs: Mapping[str, StageSpec | StageReference],
    runtime: dict[str, Any],
    store: Path,
) -> StageSpec:
    """A stage with its key."""
    references = {
        role: spec.as_reference() if isinstance(spec, StageSpec) else spec
        for role, spec in inputs.items()
    }
    key = digest_json(
        {
            "stage": stage,
            "revision": stage_module(stage).REVISION,
            "parameters": parameters,
            "inputs": {role: reference.key for role, reference in references.items()},
        }
    )
    return StageSpec(
        stage=stage,
        variant=variant,
        key=key,
        parameters=parameters,
        inputs=references,
        runtime=runtime,
        store=str(store),
    )


@dataclass
class Planner:
    """Builds a Plan.

    Args:
        checkpoint: inspected.
        profile: serving profile.
        policy: gates and margins.
        identities: environment name to identity digest.
        hardware: facts about the machine that the serving tuple depends on.
        sources: resolves questions and calibration texts.
        store: folder of the store.
        trust_remote_code: run Python code from the checkpoint's folder.
    """

    checkpoint: Checkpoint
    profile: ServingProfile
    policy: Policy
    identities: Mapping[str, str]
    hardware: dict[str, Any]
    sources: SourceResolver
    store: Path
    trust_remote_code: bool = False
    _questions: dict[str, StageSpec] = field(default_factory=dict)

    def plan(self, recipes: list[Recipe], baseline: Recipe) -> Plan:
        """The plan for these recipes."""
        self._questions = {
            f"questions.{name}": self._question_stage(name) for name in self.policy.suites
        }
        baseline_plan = self._variant(baseline, None)
        return Plan(
            checkpoint=self.checkpoint,
            profile=self.profile,
            policy=self.policy,
            shared=self._questions,
            baseline=baseline_plan,
            variants=tuple(self._variant(recipe, baseline_plan) for recipe in recipes),
        )

    def _question_stage(self, name: str) -> StageSpec:
        suite = self.policy.suites[name]
        source = self.sources.suite(name, suite)
        asked = suite.model_dump(exclude={"margins", "sources", "concurrency"})
        return stage_spec(
            "questions",
            name,
            {"suite": asked, "source": source.identity, "seed": QUESTION_SEED},
            {},
            {
                "folder": str(source.folder) if source.folder else None,
                "environment": "evaluate",
                "suite": name,
            },
            self.store,
        )

    def _variant(self, recipe: Recipe, baseline: VariantPlan | None) -> VariantPlan:
        arguments = ServingArguments.of(self.profile, is_baseline=baseline is None)
        stages: dict[str, StageSpec] = {}
        weights: dict[str, StageSpec] = {}
        model = self.checkpoint.path
        if baseline is not None:
            stages["quantize"] = quantize = self._quantize_stage(recipe)
            model = Path(quantize.store) / "stages" / "quantize" / quantize.key / "output"
            stages["verify"] = self._verify_stage(recipe, quantize)
            weights = {"weights": stages["verify"]}
        served = self._served_stages(recipe, arguments, model, weights, baseline)
        stages.update(served)
        if baseline is not None:
            stages["judge"] = self._judge_stage(recipe, stages, baseline)
        return VariantPlan(recipe, arguments, model, stages, tuple(served), self.trust_remote_code)

    def _quantize_stage(self, recipe: Recipe) -> StageSpec:
        quantization = recipe.quantization
        runtime: dict[str, Any] = {
            "checkpoint": self.checkpoint.model_dump(mode="json"),
            "environment": "quantize",
        }
        data: dict[str, Any] = {}
        if isinstance(quantization, AwqQuantization):
            quantization, data, file = self.sources.calibration(
                quantization, self.profile.calibration_limit, recipe.name
            )
            runtime["calibration_file"] = str(file) if file else None
            runtime["needs_hub"] = file is None
        return stage_spec(
            "quantize",
            recipe.name,
            {
                "checkpoint": self.checkpoint.digest,
                "quantization": quantization.model_dump(),
                "calibration_data": data,
                "environment": self.identities["quantize"],
                "trust_remote_code": self.trust_remote_code,
            },
            {},
            runtime,
            self.store,
        )

    def _verify_stage(self, recipe: Recipe, quantize: StageSpec) -> StageSpec:
        return stage_spec(
            "verify",
            recipe.name,
            {
                "checkpoint": self.checkpoint.digest,
                "quantization": {
                    "kind": recipe.quantization.kind,
                    "ignore": getattr(recipe.quantization, "ignore", []),
                },
            },
            {"weights": quantize},
            {"checkpoint": self.checkpoint.model_dump(mode="json")},
            self.store,
        )

    def _served_stages(
        self,
        recipe: Recipe,
        arguments: ServingArguments,
        model: Path,
        weights: dict[str, StageSpec],
        baseline: VariantPlan | None,
    ) -> dict[str, StageSpec]:
        """Coherence, suites, benchmark: all that one life of the variant's server answers."""
        served_as = {
            "checkpoint": self.checkpoint.digest,
            "serving": arguments.to_dict(),
            "engine": self.identities["serve"],
            "hardware": self.hardware,
            "trust_remote_code": self.trust_remote_code,
        }
        tokenizer = {"tokenizer": str(model)}
        inputs: dict[str, StageSpec] = dict(weights)
        if baseline is not None:
            inputs["baseline"] = baseline.stages["coherence"]
        stages = {
            "coherence": stage_spec("coherence", recipe.name, served_as, inputs, {}, self.store)
        }
        after = {**weights, "coherence": stages["coherence"]}
        for name, suite in self.policy.suites.items():
            stages[name] = stage_spec(
                "evaluate",
                recipe.name,
                {
                    **served_as,
                    "suite": suite.model_dump(exclude={"margins", "sources", "questions"}),
                    "environment": self.identities["evaluate"],
                    "max_length": self._max_length(),
                },
                {**after, "questions": self._questions[f"questions.{name}"]},
                {**tokenizer, "environment": "evaluate", "suite": name},
                self.store,
            )
        stages["benchmark"] = stage_spec(
            "benchmark",
            recipe.name,
            {
                **served_as,
                "workload": self.profile.workload.model_dump(),
                "machine": machine(),
            },
            after,
            {**tokenizer, "environment": "serve"},
            self.store,
        )
        return stages

    def _judge_stage(
        self, recipe: Recipe, stages: Mapping[str, StageSpec], baseline: VariantPlan
    ) -> StageSpec:
        measured = [*self.policy.suites, "benchmark"]
        return stage_spec(
            "judge",
            recipe.name,
            {
                "policy": self.policy.model_dump(),
                "family": recipe.family,
                "accelerator": self.profile.accelerator,
                "throughput_note": self.profile.throughput_note,
            },
            {
                **{f"baseline.{name}": baseline.stages[name] for name in measured},
                **{f"candidate.{name}": stages[name] for name in measured},
            },
            {},
            self.store,
        )

    def _max_length(self) -> int:
        """Tokens that prompt and answer may have together: the engine's limit, or the model's."""
        limit = self.profile.engine_arguments.get("max-model-len")
        return int(limit) if limit else self.checkpoint.max_position_embeddings
