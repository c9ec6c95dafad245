"""A run as stages with their keys.

A stage's key is the digest of its name, revision, parameters and inputs' keys, so the plan and its
finished stages are known in advance. Only verdicts and promotion depend on answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Literal

from pipeline.core.stage import StageRecord, StageReference, StageSpec
from pipeline.serving.served_model import ExternalEndpoint, ServedModel, ServingSpec
from pipeline.serving.serving_arguments import ServingArguments
from pipeline.stages.attempts import Trial
from pipeline.stages.evaluate import EVALUATE
from pipeline.stages.judge import JUDGE, JudgeParameters, JudgeRuntime
from pipeline.stages.speed import SPEED
from recipes.policy import Policy
from recipes.schema import AcceleratorName, Recipe, ServingProfile

Find = Callable[[StageSpec], StageRecord | None]


@dataclass(frozen=True)
class Arm:
    """A baseline or variant as it is served, or an endpoint, with its stages in run order.

    Args:
        identity: the model and its serving arguments; part of the keys.
        folder: of the served weights, or of an endpoint's tokenizer.
        max_length: maximum tokens of prompt and answer together.
        stages: by role; before the plan is built, those that make and check the weights.
        served: roles that the first run of the arm's server answers.
        arguments: None for an external endpoint.
        profile: as it is applied, if this arm has another than the plan's.
        draft: directory of the draft checkpoint, if any.
    """

    recipe: Recipe
    identity: ServedModel
    folder: Path
    max_length: int
    stages: Mapping[str, StageSpec] = field(default_factory=dict)
    served: tuple[str, ...] = ()
    arguments: ServingArguments | None = None
    endpoint: ExternalEndpoint | None = None
    profile: ServingProfile | None = None
    trust_remote_code: bool = False
    draft: Path | None = None
    ready_timeout_seconds: float = 0.0

    @property
    def to_serve(self) -> ServingSpec:
        return ServingSpec(
            name=self.recipe.name,
            folder=str(self.folder),
            arguments=self.arguments,
            ready_timeout_seconds=self.ready_timeout_seconds,
            trust_remote_code=self.trust_remote_code,
            draft=str(self.draft) if self.draft else None,
            endpoint=self.endpoint,
        )


@dataclass(frozen=True)
class Plan:
    """A full run: shared stages by role, the baseline, then the variants.

    Args:
        profile: as it is applied; None for endpoints.
        run: id of the run; '' to look ahead only.
        until_pass: gate one variant after another, and none after the first that passes.
    """

    policy: Policy
    shared: Mapping[str, StageSpec]
    baseline: Arm
    variants: tuple[Arm, ...]
    trial: Trial
    profile: ServingProfile | None = None
    run: str = ""
    until_pass: bool = False

    @property
    def accelerator(self) -> AcceleratorName | Literal[""]:
        """The serving accelerator; '' if unknown."""
        return self.profile.accelerator if self.profile is not None else ""

    def stages(self, find: Find) -> list[StageSpec]:
        """Return every stage of the run, in order."""
        variants = self.variants
        made = [[v.stages["quantize"], v.stages["check_weights"]] for v in variants]
        measured = [self.served_stages(v, find) for v in (self.baseline, *variants)]
        fresh = [self.fresh_stages(v, find).values() for v in variants]
        judged = [self.judge_stage(v, find) for v in variants]
        return [*self.shared.values(), *chain(*made, *measured, *fresh), *judged]

    def served_stages(self, arm: Arm, find: Find) -> list[StageSpec]:
        """Return the stages that one start of the arm's server answers, in order."""
        speed, fresh = self.speed_stages(arm, find), self.fresh_stages(arm, find)
        roles = [r for r in arm.served if r in speed or arm.stages[r].stage != SPEED.name]
        return [arm.stages[role] for role in roles if role not in fresh]

    def fresh_stages(self, arm: Arm, find: Find) -> dict[str, StageSpec]:
        """Return the speed gates of `speed_stages` whose loads each have a fresh start."""
        speed = self.speed_stages(arm, find).items()
        return {role: spec for role, spec in speed if SPEED.parameters_of(spec).is_fresh}

    def speed_stages(self, arm: Arm, find: Find) -> dict[str, StageSpec]:
        """Return the stages of the policy's speed gates, by role.

        A variant that failed a blocking suite gets no further loads.
        """
        speed = {role: spec for role, spec in arm.stages.items() if spec.stage == SPEED.name}
        if self.has_failed(arm, find):
            return {role: spec for role, spec in speed.items() if find(spec)}
        return speed

    def has_failed(self, arm: Arm, find: Find) -> bool:
        """Return whether the variant failed a suite that blocks it."""
        return any(
            suite.tier != "advisory" and has_failed(find(arm.stages[name]))
            for name, suite in self.policy.suites.items()
            if name in arm.stages
        )

    def judge_stage(self, variant: Arm, find: Find) -> StageSpec:
        """Build the verdict's stage from the suites' answers and the speed gates."""
        inputs: dict[str, StageSpec | StageReference] = {}
        for suite in self.policy.suites:
            spec = variant.stages[suite]
            inputs[f"baseline.{suite}"] = spec.inputs["baseline"]
            inputs[f"candidate.{suite}"] = spec
            inputs[f"questions.{suite}"] = spec.inputs["questions"]
            if repeat_role(suite) in self.baseline.stages:
                inputs[f"again.{suite}"] = self.baseline.stages[repeat_role(suite)]
        inputs |= self.speed_stages(variant, find)
        return JUDGE.spec(
            variant.recipe.name,
            JudgeParameters(
                policy=self.policy,
                recipe=variant.recipe.name,
                trial=self.trial,
                family=variant.recipe.family,
                profile=variant.profile or self.profile,
            ),
            inputs,
            JudgeRuntime(run=self.run),
            Path(variant.stages["screen"].store),
        )


def has_failed(record: StageRecord | None) -> bool:
    """Return whether the suite is answered and failed the variant."""
    return record is not None and EVALUATE.result_of(record).state == "fail"


def repeat_role(suite: str) -> str:
    """Return the role of the stage that repeats a suite's first questions."""
    return f"{suite} again"
