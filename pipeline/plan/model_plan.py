"""Builds the plan of `prepare model`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pipeline.checkpoint.folder import Checkpoint
from pipeline.core.digest import digest_json
from pipeline.core.hardware import NodeInfo
from pipeline.core.stage_record import StageSpec
from pipeline.environments.definition import EnvironmentName, environment_name
from pipeline.inspection.header_source import HeaderSource, read_folder
from pipeline.inspection.unquantized_modules import describe_added_modules, ignore_list
from pipeline.plan.adopted_variants import adopt_stage, served_profile
from pipeline.plan.context_length import max_length_of
from pipeline.plan.data_sources import BUILTIN_CALIBRATION, SourceResolver
from pipeline.plan.evaluation_plan import EvaluationPlanner, EvaluationSide
from pipeline.plan.plan import Plan, VariantPlan
from pipeline.plan.speed_plan import (
    Sides,
    SpeedSide,
    asked_of_speed,
    find_claims,
    pin_files,
    speed_stages,
)
from pipeline.serving.served_model import ServedModel, ServerRuntime
from pipeline.serving.serving_arguments import ServingArguments
from pipeline.stages.attempts import NOTHING, Remeasured, Trial, trial_of
from pipeline.stages.check_weights import (
    CHECK_WEIGHTS,
    CheckWeightsParameters,
    CheckWeightsRuntime,
)
from pipeline.stages.quantize import (
    QUANTIZE,
    CalibrationCompute,
    QuantizeParameters,
    QuantizeRuntime,
)
from pipeline.stages.screen import SCREEN
from recipes.engines import find_engine
from recipes.policy import Policy
from recipes.quantization import Quantization
from recipes.schema import Recipe, ServingProfile


@dataclass(frozen=True)
class ModelPlanner:
    """Builds a Plan.

    Args:
        baseline: the recipe that changes nothing.
        identities: environment name to identity digest.
        node: the serving node, or one of its kind.
        made: stages of existing weights, by recipe; they replace quantizing.
        tried: recipes that a verdict counts, if they differ from `recipes`.
        draft: the draft checkpoint, if the profile names one.
        run: id of the run; '' to look ahead only.
        remeasured: gates to measure again although they are finished.
        adopted: checkpoints of variants that are not quantized here, by recipe.
    """

    checkpoint: Checkpoint
    profile: ServingProfile
    policy: Policy
    recipes: tuple[Recipe, ...]
    baseline: Recipe
    identities: Mapping[str, str]
    node: NodeInfo
    sources: SourceResolver
    store: Path
    trust_remote_code: bool = False
    made: Mapping[str, StageSpec] = field(default_factory=dict)
    tried: tuple[Recipe, ...] = ()
    draft: Checkpoint | None = None
    run: str = ""
    remeasured: Remeasured = NOTHING
    adopted: Mapping[str, Checkpoint] = field(default_factory=dict)

    @cached_property
    def trial(self) -> Trial:
        """The trial that these variants are."""
        made = {name: stage.key for name, stage in self.made.items()}
        baseline = {"checkpoint": self.checkpoint.digest, **made}
        asked = {**self._asking.asked, **asked_of_speed(self.policy, self.profile)}
        keys = {
            recipe.name: digest_json([self._screen_of(recipe).key, recipe.family, asked])
            for recipe in self.recipes
        }
        others = {recipe.name: "" for recipe in self.tried if recipe.name not in keys}
        policy = pin_files(self.policy, self.profile.accelerator)
        return trial_of(baseline, {**keys, **others}, policy)

    @cached_property
    def evaluation(self) -> EvaluationPlanner:
        """Plans the suites."""
        variants = [self._served_variant(recipe) for recipe in self.recipes]
        return self._asking.count(
            self.trial, self._served_baseline, variants, self.run, self.remeasured
        )

    @cached_property
    def _asking(self) -> EvaluationPlanner:
        """As `evaluation`, before the trial is known."""
        return EvaluationPlanner(
            self.policy,
            self.tried or self.recipes,
            self.sources,
            self.identities["evaluate"],
            self.store,
        )

    @cached_property
    def source(self) -> HeaderSource:
        """The config.json and headers that recipes start from."""
        return read_folder(self.checkpoint.recipe_source.path)

    def plan(self) -> Plan:
        """Return the plan; raise EvaluationDataError if a suite has no questions.

        plan/preflight.py checks before that recipes suit the checkpoint and the machine.
        """
        baseline = self._baseline()
        return Plan(
            policy=pin_files(self.policy, self.profile.accelerator),
            shared=self.evaluation.questions,
            baseline=baseline,
            variants=tuple(
                self._measure_speed(self._variant(recipe, baseline), baseline)
                for recipe in self.recipes
            ),
            profile=self._carried_out(self.profile),
            trial=self.trial,
            run=self.run,
        )

    @cached_property
    def _made_by(self) -> dict[str, tuple[StageSpec, StageSpec]]:
        """Return the stages that make and check the weights, by recipe."""
        made = {}
        for recipe in self.recipes:
            quantization = self._quantization(recipe)
            if checkpoint := self.adopted.get(recipe.name):
                quantize = adopt_stage(recipe, self.checkpoint.digest, checkpoint, self.store)
            else:
                made_before = self.made.get(recipe.name)
                quantize = made_before or self._quantize_stage(recipe, quantization)
            made[recipe.name] = quantize, self._check_stage(recipe, quantization, quantize)
        return made

    def _arguments_of(self, recipe: Recipe) -> ServingArguments:
        """How a variant is served."""
        draft = self.draft.digest if self.draft else None
        profile = served_profile(self.profile, recipe)
        return ServingArguments.of(profile, is_baseline=False, draft=draft)

    def _carried_out(self, profile: ServingProfile) -> ServingProfile:
        return profile.carried_out(self.draft.digest if self.draft else None)

    def _screen_of(self, recipe: Recipe) -> StageSpec:
        _, check_weights = self._made_by[recipe.name]
        arguments = self._arguments_of(recipe)
        return self._screen_stage(
            recipe, arguments, {"weights": check_weights, "baseline": self._first_heard}
        )

    @cached_property
    def _first_heard(self) -> StageSpec:
        """As `_screen_of`, of the baseline."""
        arguments = ServingArguments.of(self.profile, is_baseline=True)
        return self._screen_stage(self.baseline, arguments, {})

    def _baseline(self) -> VariantPlan:
        arguments = ServingArguments.of(self.profile, is_baseline=True)
        model = self.checkpoint.path
        asked = self.evaluation.stages(self._served_baseline, None)
        stages = {"screen": self._first_heard, **asked, **self.evaluation.repeats(asked)}
        return self._variant_plan(self.baseline, arguments, model, stages, tuple(stages))

    def _variant(self, recipe: Recipe, baseline: VariantPlan) -> VariantPlan:
        arguments = self._arguments_of(recipe)
        quantize, check_weights = self._made_by[recipe.name]
        model = _output_of(quantize)
        asked = self.evaluation.stages(self._served_variant(recipe), baseline.stages)
        stages = {"screen": self._screen_of(recipe), **asked}
        made = {"quantize": quantize, "check_weights": check_weights}
        plan = self._variant_plan(recipe, arguments, model, {**made, **stages}, tuple(stages))
        profile = served_profile(self.profile, recipe)
        is_other = profile is not self.profile
        return replace(plan, profile=self._carried_out(profile)) if is_other else plan

    @cached_property
    def _served_baseline(self) -> EvaluationSide:
        arguments = ServingArguments.of(self.profile, is_baseline=True)
        after = {"screen": self._first_heard}
        return self._describe_served(self.baseline, arguments, after, self.checkpoint.path)

    def _served_variant(self, recipe: Recipe) -> EvaluationSide:
        quantize, check_weights = self._made_by[recipe.name]
        after = {"weights": check_weights, "screen": self._screen_of(recipe)}
        return self._describe_served(
            recipe, self._arguments_of(recipe), after, _output_of(quantize)
        )

    def _measure_speed(self, variant: VariantPlan, baseline: VariantPlan) -> VariantPlan:
        """Add the stages of the policy's speed gates, if it has any."""
        claims = find_claims(
            self.policy,
            self.profile,
            alpha=self.trial.level,
            max_length=max_length_of(self.profile, self.checkpoint),
        )
        before, after = (
            SpeedSide(each.recipe.name, self._identity(arguments), each.stages["screen"])
            for each, arguments in (
                (baseline, ServingArguments.of(self.profile, is_baseline=True)),
                (variant, self._arguments_of(variant.recipe)),
            )
        )
        measured = Sides(
            before,
            after,
            tokenizer=baseline.model,
            environment=self.identities.get("serve", ""),
            machine=self.node.measured_on(self.profile.accelerator),
            other_weights=tuple(self._beside),
        )
        return variant.measure_speed(
            speed_stages(measured, self.trial, claims, self.run, self.remeasured)
        )

    def _variant_plan(
        self,
        recipe: Recipe,
        arguments: ServingArguments,
        model: Path,
        stages: dict[str, StageSpec],
        served: tuple[str, ...],
    ) -> VariantPlan:
        return VariantPlan(
            recipe=recipe,
            model=model,
            arguments=arguments,
            stages=stages,
            served=served,
            trust_remote_code=self.trust_remote_code,
            draft=self.draft.path if self.draft and arguments.speculative else None,
            ready_timeout_seconds=self.profile.ready_timeout_seconds,
        )

    def _quantize_stage(self, recipe: Recipe, quantization: Quantization) -> StageSpec:
        environment = environment_name(quantization.environment)
        tensors, config = self.source.tensors, self.source.config
        data: dict[str, Any] = {}
        file: Path | None = None
        needs_hub = False
        compute = CalibrationCompute() if quantization.is_streamed else self._compute()
        if quantization.calibration is not None:
            calibration, data, file = self.sources.calibration(
                quantization.calibration, self.profile.calibration_limit, recipe.name
            )
            quantization = quantization.model_copy(update={"calibration": calibration})
            needs_hub = file is None
        return QUANTIZE.spec(
            recipe.name,
            QuantizeParameters(
                checkpoint=self.checkpoint.recipe_source.digest,
                quantization=quantization,
                calibration_data=data,
                environment=self.identities[environment],
                trust_remote_code=self.trust_remote_code,
                compute=compute,
            ),
            {},
            QuantizeRuntime(
                checkpoint=self.checkpoint.recipe_source,
                environment=environment,
                recipe=recipe.model_dump(mode="json"),
                left_alone=describe_added_modules(
                    tensors, config, recipe.quantization.ignore, quantization.ignore
                ),
                calibration_file=str(file) if file else None,
                needs_hub=needs_hub,
            ),
            self.store,
        )

    def _compute(self) -> CalibrationCompute:
        """Return the settings that change a calibration's numbers; empty in the model's type."""
        limits = self.node.cpu_limits if self.profile.accelerator == "cpu" else {}
        dtype = "float32" if self.profile.quantizes_in_float32 else None
        return CalibrationCompute(dtype=dtype, environment=limits)

    def _quantization(self, recipe: Recipe) -> Quantization:
        """Return the recipe's quantization, with its ignore list for the architecture."""
        if not recipe.quantization.quantizes:
            return recipe.quantization
        return recipe.quantization.model_copy(
            update={
                "ignore": ignore_list(
                    self.source.tensors,
                    self.source.config,
                    recipe.quantization.ignore,
                    fp8=recipe.quantization.is_fp8,
                )
            }
        )

    def _check_stage(
        self, recipe: Recipe, quantization: Quantization, quantize: StageSpec
    ) -> StageSpec:
        if quantization.calibration is not None:
            # Where the calibration data lies is not in the key; what it is, is in `quantize`'s.
            nowhere = quantization.calibration.model_copy(update={"dataset": None})
            quantization = quantization.model_copy(update={"calibration": nowhere})
        source = self.checkpoint.recipe_source
        return CHECK_WEIGHTS.spec(
            recipe.name,
            CheckWeightsParameters(checkpoint=source.digest, quantization=quantization),
            {"weights": quantize},
            CheckWeightsRuntime(
                checkpoint=source,
                environment=EnvironmentName.QUANTIZE,
                trust_remote_code=self.trust_remote_code,
                texts=str(BUILTIN_CALIBRATION),
                baseline_bytes=self.checkpoint.weights_bytes,
            ),
            self.store,
        )

    def _screen_stage(
        self, recipe: Recipe, arguments: ServingArguments, inputs: dict[str, StageSpec]
    ) -> StageSpec:
        identity = self._identity(arguments)
        return SCREEN.spec(recipe.name, identity, inputs, ServerRuntime(), self.store)

    def _describe_served(
        self,
        recipe: Recipe,
        arguments: ServingArguments,
        after: dict[str, StageSpec],
        model: Path,
    ) -> EvaluationSide:
        max_length = max_length_of(self.profile, self.checkpoint)
        return EvaluationSide(recipe, self._identity(arguments), after, model, max_length)

    @property
    def _beside(self) -> list[str]:
        """Stages of existing weights, for which both sides are measured again."""
        return sorted(stage.key for stage in self.made.values())

    def _identity(self, arguments: ServingArguments) -> ServedModel:
        """Return the served model and its arguments; earlier stages identify the weights."""
        return ServedModel(
            checkpoint=self.checkpoint.digest,
            serving=arguments,
            engine=self.identities[find_engine(arguments.engine).environment],
            hardware=self.node.hardware(self.profile.accelerator),
            trust_remote_code=self.trust_remote_code,
        )


def _output_of(quantize: StageSpec) -> Path:
    return Path(quantize.store) / "stages" / quantize.stage / quantize.key / "output"
