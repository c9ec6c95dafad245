"""The arms of `prepare model`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pipeline.environments.definition import WEIGHT_READER
from pipeline.environments.environment import identity
from pipeline.environments.settings import Settings
from pipeline.plan.adopted_variants import adopt_stage, with_facts
from pipeline.plan.build import Builder
from pipeline.plan.choice import Choice
from pipeline.plan.data_sources import BUILTIN_CALIBRATION, SourceResolver
from pipeline.plan.generation_settings import max_length_of, resolve_generation, with_lengths
from pipeline.plan.locator import Located
from pipeline.plan.plan import Arm, Plan
from pipeline.serving.served_model import ServedModel
from pipeline.serving.serving_arguments import ServingArguments
from pipeline.stages import CHECKED_WEIGHTS, WEIGHTS
from pipeline.stages.attempts import AttemptLedger
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
from prepare.errors import UsageError
from prepare.hardware import NodeInfo
from prepare.stage import StageSpec
from recipes.checkpoints.checkpoint import Checkpoint
from recipes.checkpoints.ignore_list import ignore_list
from recipes.engines import find_engine
from recipes.quantization import Quantization
from recipes.schema import Recipe, ServingProfile


@dataclass(frozen=True)
class ModelPlanner:
    """Builder of a Plan.

    `made` has stages of existing weights by recipe. `tried` recipes are counted by verdicts.
    `sizes` has expected bytes of weights by recipe, by which a descent is ordered. `run` is '' to
    look ahead only. `least_number` is as a Builder's.
    """

    choices: Choice
    located: Located
    identities: Mapping[str, str]
    sources: SourceResolver
    store: Path
    made: Mapping[str, StageSpec] = field(default_factory=dict)
    tried: tuple[str, ...] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)
    run: str = ""
    least_number: int = 1

    @property
    def checkpoint(self) -> Checkpoint:
        return self.located.source

    @property
    def profile(self) -> ServingProfile:
        return self.choices.profile

    def plan(self) -> Plan:
        """Return the plan; EvaluationDataError if a suite has no questions."""
        made = {name: stage.key for name, stage in self.made.items()}
        return Builder(
            policy=self.choices.policy,
            baseline=self._arm(self.choices.baseline),
            variants=[self._arm(recipe) for recipe in self._ordered_recipes],
            reference={"checkpoint": self.checkpoint.digest, **made},
            sources=self.sources,
            identities=self.identities,
            store=self.store,
            machine=self.choices.node.machine,
            profile=self._as_applied(self.profile),
            tried=self.tried,
            descends=self.choices.asked.until_pass,
            run=self.run,
            remeasured=self.choices.remeasured,
            least_number=self.least_number,
            other_weights=sorted(made.values()),
        ).build()

    @property
    def _ordered_recipes(self) -> Sequence[Recipe]:
        """The recipes; of a descent from the largest down, equal ones as they were named."""
        recipes = self.choices.recipes
        if not self.choices.asked.until_pass:
            return recipes
        return sorted(recipes, key=lambda recipe: -self.sizes.get(recipe.name, 0))

    def _arm(self, recipe: Recipe) -> Arm:
        is_baseline = recipe.family == "baseline"
        profile = self.profile if is_baseline else self.choices.profile_of(recipe)
        drafter = self.located.draft
        draft = drafter.digest if drafter and not is_baseline else None
        arguments = ServingArguments.of(profile, is_baseline=is_baseline, draft=draft)
        stages = {}
        folder = self.checkpoint.path
        if not is_baseline:
            stages = self._made_by(recipe)
            made = stages[WEIGHTS]
            folder = Path(made.store) / "stages" / made.stage / made.key / "output"
        arm = served_arm(
            *(recipe, self.checkpoint, profile, arguments, self.identities, self.choices.node),
            trust_remote_code=self.choices.asked.trust_remote_code,
        )
        return replace(
            arm,
            folder=folder,
            max_length=max_length_of(self.profile, self.checkpoint),
            stages=stages,
            profile=None if profile is self.profile else self._as_applied(profile),
            draft=drafter.path if drafter and arguments.speculative else None,
        )

    def _as_applied(self, profile: ServingProfile) -> ServingProfile:
        return profile.as_applied(self.located.draft.digest if self.located.draft else None)

    def _made_by(self, recipe: Recipe) -> dict[str, StageSpec]:
        source = self.checkpoint.recipe_source
        quantization = recipe.quantization
        if quantization.quantizes:  # its ignore list depends on the architecture
            ignored = ignore_list(
                source.tensors, source.config, quantization.ignore, fp8=quantization.is_fp8
            )
            quantization = quantization.model_copy(update={"ignore": ignored})
        if checkpoint := self.located.adopted.get(recipe.name):
            weights = adopt_stage(recipe, self.checkpoint.digest, checkpoint, self.store)
        else:
            made = self.made.get(recipe.name)
            weights = made or self._quantize_stage(recipe, quantization)
        if quantization.calibration is not None:
            # The path of calibration data is not in the key; its identity is in `quantize`'s.
            nowhere = quantization.calibration.model_copy(update={"dataset": None})
            quantization = quantization.model_copy(update={"calibration": nowhere})
        check = CHECK_WEIGHTS.spec(
            recipe.name,
            CheckWeightsParameters(checkpoint=source.digest, quantization=quantization),
            {WEIGHTS: weights},
            CheckWeightsRuntime(
                checkpoint=source.place,
                environment=WEIGHT_READER,
                trust_remote_code=self.choices.asked.trust_remote_code,
                texts=str(BUILTIN_CALIBRATION),
                baseline_bytes=self.checkpoint.weights_bytes,
            ),
            self.store,
        )
        return {WEIGHTS: weights, CHECKED_WEIGHTS: check}

    def _quantize_stage(self, recipe: Recipe, quantization: Quantization) -> StageSpec:
        environment = quantization.environment
        data: dict[str, Any] = {}
        file = None
        compute = CalibrationCompute()
        if not quantization.is_streamed:  # these change a calibration's numbers
            limits = self.choices.node.cpu_limits if self.profile.accelerator == "cpu" else {}
            dtype = "float32" if self.profile.quantizes_in_float32 else None
            compute = CalibrationCompute(dtype=dtype, environment=limits)
        if quantization.calibration is not None:
            calibration, data, file = self.sources.calibration(
                quantization.calibration, self.profile.calibration_limit, recipe.name
            )
            quantization = quantization.model_copy(update={"calibration": calibration})
        quantization = self._limited(quantization, recipe.name)
        return QUANTIZE.spec(
            recipe.name,
            QuantizeParameters(
                checkpoint=self.checkpoint.recipe_source.digest,
                quantization=quantization,
                calibration_data=data,
                environment=self.identities[environment],
                trust_remote_code=self.choices.asked.trust_remote_code,
                compute=compute,
            ),
            {},
            QuantizeRuntime(
                checkpoint=self.checkpoint.recipe_source.place,
                environment=environment,
                # Several variants may share these weights.
                recipe={
                    **recipe.model_dump(mode="json"),
                    "name": self.choices.weights_name(recipe.name),
                },
                calibration_file=str(file) if file else None,
                needs_hub=quantization.calibration is not None and file is None,
            ),
            self.store,
        )

    def _limited(self, quantization: Quantization, variant: str) -> Quantization:
        """Return the quantization within the profile's limit of candidate scales."""
        limit = self.profile.calibration_limit
        if limit is None or limit.grid_points is None:
            return quantization
        limited, remark = quantization.limit_scales(limit.grid_points)
        if remark:
            self.sources.progress.note(
                f"{variant}: {remark}: the profile limits it (its key calibration_limit)"
            )
        return limited


def served_arm(
    recipe: Recipe,
    checkpoint: Checkpoint,
    profile: ServingProfile,
    arguments: ServingArguments,
    identities: Mapping[str, str],
    node: NodeInfo,
    *,
    trust_remote_code: bool,
) -> Arm:
    """Return an arm with the checkpoint's own weights."""
    return Arm(
        recipe=recipe,
        identity=ServedModel(
            checkpoint=checkpoint.digest,
            serving=arguments,
            engine=identities[find_engine(arguments.engine).environment],
            hardware=node.hardware(profile.accelerator),
            trust_remote_code=trust_remote_code,
        ),
        folder=checkpoint.path,
        max_length=max_length_of(profile, checkpoint),
        ready_timeout_seconds=profile.ready_timeout_seconds,
    )


def make_plan(
    choices: Choice,
    located: Located,
    settings: Settings,
    sources: SourceResolver,
    run: str = "",
    sizes: Mapping[str, int] | None = None,
) -> Plan:
    """Return the plan of these options; without `run`, look ahead only.

    `sizes` are expected bytes of weights by recipe, which order a descent.

    PrepareError: no calibration data, or no attempt is left.
    """
    if choices.rungs:
        raise UsageError(
            f"what {', '.join(choices.rungs)} gives back is chosen by the weights, and this "
            "command does not read them",
            where="--recipe",
            hint="name the recipe's file that a run wrote",
        )
    if located.adopted:
        adopted = with_facts(choices.adopted, located.adopted)
        known = {variant.recipe.name: variant.recipe for variant in adopted}
        recipes = tuple(known.get(recipe.name, recipe) for recipe in choices.recipes)
        choices = replace(choices, recipes=recipes)
    planner = make_planner(choices, located, settings, sources)
    plan = replace(planner, run=run, sizes=sizes or {}).plan()
    if run:
        AttemptLedger(settings.open_store()).check_allowed(plan.trial)
    return plan


def make_planner(
    choices: Choice, located: Located, settings: Settings, sources: SourceResolver
) -> ModelPlanner:
    """Return the planner of these options."""
    checkpoint = located.source
    accelerator = choices.profile.accelerator
    policy = resolve_generation(choices.policy, checkpoint.generation)
    fitted = with_lengths(policy, max_length_of(choices.profile, checkpoint), sources.note)
    identities = {name: identity(name, accelerator, settings) for name in choices.environments}
    choices = replace(choices, policy=fitted)
    return ModelPlanner(choices, located, identities, sources, settings.store)
