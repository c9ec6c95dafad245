"""A run laid out as stages with their keys, before anything is done.

A stage's key is the digest of its name, revision, parameters and inputs' keys: everything that
can change its output. So the whole plan, and what of it is already in the store, is known from
the start; only how many rounds of questions it takes, and so the verdict and the promotion, wait
for the answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from pathlib import Path
from typing import Literal

from pipeline.core.stage_record import StageRecord, StageReference, StageSpec
from pipeline.serving.serving_arguments import ServingArguments
from pipeline.serving.serving_spec import ExternalEndpoint, ServingSpec
from pipeline.stages.attempts import Attempt
from pipeline.stages.evaluate import EVALUATE
from pipeline.stages.judge import JUDGE, JudgeParameters, JudgeRuntime
from pipeline.stages.speed import ROLE, SPEED
from recipes.policy import Policy
from recipes.schema import AcceleratorName, Recipe, ServingProfile

Rounds = Mapping[str, tuple[StageSpec, ...]]
Find = Callable[[StageSpec], StageRecord | None]


@dataclass(frozen=True)
class VariantPlan:
    """One recipe's stages, in the order they run.

    Args:
        model: folder of the checkpoint that is served; of an endpoint that someone else serves,
            of its tokenizer.
        arguments: how it is served; None where someone else does.
        stages: by role; a suite's is its first round.
        served: roles that the first life of the variant's server answers.
        rounds: by suite, all rounds of questions that there could be.
        draft: folder of the checkpoint that drafts for it, where one does.
        ready_timeout_seconds: that its server has to start.
        endpoint: where someone else serves it.
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

    @property
    def to_serve(self) -> ServingSpec:
        """Notes for the user who serves it."""
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
        """The plan with these stages, by role, after all else that the server answers."""
        return replace(
            self,
            stages={**self.stages, **speed},
            served=tuple(dict.fromkeys((*self.served, *speed))),
        )

    def wants_dry_run(self, find: Find) -> bool:
        """Whether two layers are to be tried first: not where the whole is quantized already."""
        return "dry_run" in self.stages and find(self.stages["quantize"]) is None

    def find_reached(self, find: Find) -> dict[str, StageSpec]:
        """By suite, the last round that the answers so far call for; it may be still to run."""
        reached = {}
        for suite, rounds in self.rounds.items():
            number = 0
            while number + 1 < len(rounds) and needs_more(find(rounds[number])):
                number += 1
            reached[suite] = rounds[number]
        return reached


@dataclass(frozen=True)
class Plan:
    """A whole run: shared stages, the baseline, then the variants.

    Args:
        shared: stages that all need, by role.
        baseline: what every variant is judged against.
        profile: that both sides are served by, as it is carried out; None of endpoints, and of a
            tuning.
        rungs: recipes of a ladder, in order; empty without one.
        attempt: that the variants are; None of a tuning, which judges no variant.
    """

    policy: Policy
    shared: Mapping[str, StageSpec]
    baseline: VariantPlan
    variants: tuple[VariantPlan, ...]
    profile: ServingProfile | None = None
    rungs: tuple[str, ...] = ()
    attempt: Attempt | None = None

    @property
    def accelerator(self) -> AcceleratorName | Literal[""]:
        """That both sides are served on; '' where nobody knows."""
        return self.profile.accelerator if self.profile is not None else ""

    @property
    def tried_at_once(self) -> tuple[VariantPlan, ...]:
        """The variants that wait for no other: all but a ladder's rungs after the first."""
        later = self.rungs[1:]
        return tuple(each for each in self.variants if each.recipe.name not in later)

    @property
    def later_rungs(self) -> tuple[VariantPlan, ...]:
        """The ladder's rungs after the first, in order: tried while none before has passed."""
        by_name = {each.recipe.name: each for each in self.variants}
        return tuple(by_name[name] for name in self.rungs[1:])

    def stages(self, find: Find) -> list[StageSpec]:
        """Every stage that the answers so far call for, about in the order in which they run."""
        variants = self.find_reached_variants(find)
        tried = [v.stages["dry_run"] for v in variants if v.wants_dry_run(find)]
        made = [[v.stages["quantize"], v.stages["check_weights"]] for v in variants]
        measured = [self.served_stages(v, find) for v in (self.baseline, *variants)]
        judged = [self.judge_stage(v, self.last_rounds(v, find), find) for v in variants]
        return [
            *self.shared.values(),
            *tried,
            *chain(*made),
            *chain(*measured),
            *self._further_rounds(variants, find),
            *judged,
        ]

    def served_stages(self, variant: VariantPlan, find: Find) -> list[StageSpec]:
        """What the first life of the variant's server answers, in order."""
        speed = self.speed_stages(variant, find)
        roles = [r for r in variant.served if r in speed or variant.stages[r].stage != SPEED.name]
        return [variant.stages[role] for role in roles]

    def find_reached_variants(self, find: Find) -> tuple[VariantPlan, ...]:
        """The variants that the verdicts so far call for: a rung, once that before has failed."""
        reached = list(self.tried_at_once)
        by_name = {each.recipe.name: each for each in self.variants}
        for before, rung in pairwise(by_name[name] for name in self.rungs):
            judged = find(self.judge_stage(before, self.last_rounds(before, find), find))
            if judged is None or JUDGE.result_of(judged).verdict == "pass":
                break
            reached.append(rung)
        return tuple(reached)

    def last_rounds(self, variant: VariantPlan, find: Find) -> dict[str, StageSpec]:
        """By suite, the last round of the variant's; it may be still to run.

        As `find_reached`, but a variant that has failed a suite which blocks is asked no more, so
        its other suites end with the rounds that they have.
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
        """By role, what is measured of the policy's claims on speed.

        A variant that has failed a suite which blocks is not put under load any more.
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
        """The verdict on a variant from its suites' last rounds, and from its speed."""
        assert self.attempt is not None
        inputs: dict[str, StageSpec | StageReference] = {}
        for suite, spec in last.items():
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
                attempt=self.attempt.without_run,
                family=variant.recipe.family,
                gates={
                    suite: rule
                    for suite, spec in last.items()
                    if (rule := EVALUATE.parameters_of(spec).rule) is not None
                },
                profile=self.profile,
                speed={
                    role.removeprefix(ROLE): SPEED.parameters_of(spec).decided_by
                    for role, spec in variant.stages.items()
                    if spec.stage == SPEED.name
                },
            ),
            inputs,
            JudgeRuntime(run=self.attempt.run),
            Path(variant.stages["coherence"].store),
        )

    def _further_rounds(self, variants: tuple[VariantPlan, ...], find: Find) -> list[StageSpec]:
        """Rounds after the first, the baseline's before each variant's."""
        specs: dict[str, StageSpec] = {}
        for variant in variants:
            for suite, last in self.last_rounds(variant, find).items():
                for number in range(1, variant.rounds[suite].index(last) + 1):
                    for side in (self.baseline, variant):
                        spec = side.rounds[suite][number]
                        specs[spec.key] = spec
        return list(specs.values())


def needs_more(record: StageRecord | None) -> bool:
    """Whether that round is done and left its gate open, with more questions to ask."""
    return record is not None and EVALUATE.result_of(record).has_more


def has_failed(record: StageRecord | None) -> bool:
    """Whether that round is done and decided against the variant."""
    return record is not None and EVALUATE.result_of(record).state == "fail"


def repeat_role(suite: str) -> str:
    """The role of the stage in which the baseline is asked a suite's first questions again."""
    return f"{suite} again"
