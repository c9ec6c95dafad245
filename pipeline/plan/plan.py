"""A run as stages with their keys.

A stage's key is the digest of its name, revision, parameters and inputs' keys. The plan and its
finished stages are therefore known from the start. Only the number of rounds, the verdicts and the
promotion depend on answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Literal

from pipeline.core.stage_record import StageRecord, StageReference, StageSpec
from pipeline.serving.serving_arguments import ServingArguments
from pipeline.serving.serving_spec import ExternalEndpoint, ServingSpec
from pipeline.stages.attempts import Attempt
from pipeline.stages.evaluate import EVALUATE
from pipeline.stages.judge import JUDGE, JudgeParameters, JudgeRuntime, cost_rules_of
from pipeline.stages.speed import ROLE, SPEED
from recipes.policy import Policy
from recipes.schema import AcceleratorName, Recipe, ServingProfile

Rounds = Mapping[str, tuple[StageSpec, ...]]
Find = Callable[[StageSpec], StageRecord | None]


@dataclass(frozen=True)
class VariantPlan:
    """One recipe's stages, in run order.

    Args:
        model: directory of the served checkpoint, or of an endpoint's tokenizer.
        arguments: None for an external endpoint.
        stages: by role; a suite's is its first round.
        served: roles that the first run of the variant's server answers.
        rounds: by suite, all possible rounds of questions.
        draft: directory of the draft checkpoint, if any.
        profile: as it is applied, if this variant has other arguments than the plan's.
    """

    recipe: Recipe
    model: Path
    arguments: ServingArguments | None
    stages: Mapping[str, StageSpec]
    served: tuple[str, ...]
    rounds: Rounds
    trust_remote_code: bool = False
    draft: Path | None = None
    ready_timeout_seconds: float = 0.0
    endpoint: ExternalEndpoint | None = None
    profile: ServingProfile | None = None

    @property
    def to_serve(self) -> ServingSpec:
        return ServingSpec(
            name=self.recipe.name,
            folder=str(self.model),
            arguments=self.arguments,
            ready_timeout_seconds=self.ready_timeout_seconds,
            trust_remote_code=self.trust_remote_code,
            draft=str(self.draft) if self.draft else None,
            endpoint=self.endpoint,
        )

    def measure_speed(self, speed: Mapping[str, StageSpec]) -> VariantPlan:
        """Return the plan with these stages, by role, after all others of the server."""
        return replace(
            self,
            stages={**self.stages, **speed},
            served=tuple(dict.fromkeys((*self.served, *speed))),
        )

    def find_reached(self, find: Find) -> dict[str, StageSpec]:
        """Return each suite's last required round, which may be pending."""
        reached = {}
        for suite, rounds in self.rounds.items():
            number = 0
            while number + 1 < len(rounds) and needs_more(find(rounds[number])):
                number += 1
            reached[suite] = rounds[number]
        return reached


@dataclass(frozen=True)
class Plan:
    """A full run: shared stages, the baseline, then the variants.

    Args:
        shared: stages that all variants need, by role.
        profile: as it is applied; None for endpoints and tuning.
        attempt: None for tuning, which judges no variant.
    """

    policy: Policy
    shared: Mapping[str, StageSpec]
    baseline: VariantPlan
    variants: tuple[VariantPlan, ...]
    profile: ServingProfile | None = None
    attempt: Attempt | None = None

    @property
    def accelerator(self) -> AcceleratorName | Literal[""]:
        """The serving accelerator; '' if unknown."""
        return self.profile.accelerator if self.profile is not None else ""

    def stages(self, find: Find) -> list[StageSpec]:
        """Return every stage that the answers so far require, roughly in run order."""
        variants = self.variants
        made = [[v.stages["quantize"], v.stages["check_weights"]] for v in variants]
        measured = [self.served_stages(v, find) for v in (self.baseline, *variants)]
        judged = [self.judge_stage(v, self.last_rounds(v, find), find) for v in variants]
        return [
            *self.shared.values(),
            *chain(*made),
            *chain(*measured),
            *self._further_rounds(variants, find),
            *judged,
        ]

    def served_stages(self, variant: VariantPlan, find: Find) -> list[StageSpec]:
        """Return the stages of the variant's first server run, in order."""
        speed = self.speed_stages(variant, find)
        roles = [r for r in variant.served if r in speed or variant.stages[r].stage != SPEED.name]
        return [variant.stages[role] for role in roles]

    def last_rounds(self, variant: VariantPlan, find: Find) -> dict[str, StageSpec]:
        """Return each suite's last round, which may be pending.

        A variant that failed a blocking suite gets no further rounds.
        """
        reached = variant.find_reached(find)
        if not self._has_failed(reached, find):
            return reached
        return {
            suite: spec if find(spec) else rounds[max(0, rounds.index(spec) - 1)]
            for suite, spec in reached.items()
            for rounds in (variant.rounds[suite],)
        }

    def speed_stages(self, variant: VariantPlan, find: Find) -> dict[str, StageSpec]:
        """Return the stages of the policy's speed gates, by role.

        A variant that failed a blocking suite gets no further loads.
        """
        speed = {role: spec for role, spec in variant.stages.items() if spec.stage == SPEED.name}
        if self._has_failed(variant.find_reached(find), find):
            return {role: spec for role, spec in speed.items() if find(spec)}
        return speed

    def _has_failed(self, reached: Mapping[str, StageSpec], find: Find) -> bool:
        return any(
            self.policy.suites[suite].tier != "advisory" and has_failed(find(spec))
            for suite, spec in reached.items()
        )

    def judge_stage(
        self, variant: VariantPlan, last: Mapping[str, StageSpec], find: Find
    ) -> StageSpec:
        """Build the verdict's stage from the suites' last rounds and the speed gates."""
        assert self.attempt is not None
        inputs: dict[str, StageSpec | StageReference] = {}
        for suite, spec in last.items():
            inputs[f"baseline.{suite}"] = spec.inputs["baseline"]
            inputs[f"candidate.{suite}"] = spec
            inputs[f"questions.{suite}"] = spec.inputs["questions"]
            if repeat_role(suite) in self.baseline.stages:
                inputs[f"again.{suite}"] = self.baseline.stages[repeat_role(suite)]
        inputs |= self.speed_stages(variant, find)
        asked = {suite: EVALUATE.parameters_of(spec) for suite, spec in last.items()}
        gates = {suite: each.rule for suite, each in asked.items() if each.rule is not None}
        return JUDGE.spec(
            variant.recipe.name,
            JudgeParameters(
                policy=self.policy,
                recipe=variant.recipe.name,
                attempt=self.attempt.without_run,
                family=variant.recipe.family,
                gates=gates,
                profile=variant.profile or self.profile,
                speed={
                    role.removeprefix(ROLE): SPEED.parameters_of(spec).decided_by
                    for role, spec in variant.stages.items()
                    if spec.stage == SPEED.name
                },
                cost=cost_rules_of(self.policy, variant.recipe.family, gates, asked),
            ),
            inputs,
            JudgeRuntime(run=self.attempt.run),
            Path(variant.stages["coherence"].store),
        )

    def _further_rounds(self, variants: tuple[VariantPlan, ...], find: Find) -> list[StageSpec]:
        """Return rounds after the first, the baseline's before each variant's."""
        specs: dict[str, StageSpec] = {}
        for variant in variants:
            for suite, last in self.last_rounds(variant, find).items():
                for number in range(1, variant.rounds[suite].index(last) + 1):
                    for side in (self.baseline, variant):
                        spec = side.rounds[suite][number]
                        specs[spec.key] = spec
        return list(specs.values())


def needs_more(record: StageRecord | None) -> bool:
    """Return whether the round is done and its gate is open, with questions left."""
    return record is not None and EVALUATE.result_of(record).has_more


def has_failed(record: StageRecord | None) -> bool:
    """Return whether the round is done and failed the variant."""
    return record is not None and EVALUATE.result_of(record).state == "fail"


def repeat_role(suite: str) -> str:
    """Return the role of the stage that repeats a suite's first questions."""
    return f"{suite} again"
