"""A run as stages with their keys, which of them are done, and the pieces that processes do.

A key is the digest of name, revision, parameters and inputs' keys, so the plan is known in advance.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Literal

from pipeline.plan.recorded_arm import RecordedArm
from pipeline.serving.served_model import ServedModel
from pipeline.stages import (
    CHECKED_WEIGHTS,
    FIRST_TEXTS,
    WEIGHTS,
    again_role,
    answers_role,
    questions_role,
)
from pipeline.stages.attempts import Trial
from pipeline.stages.block import BLOCK
from pipeline.stages.check_weights import CHECK_WEIGHTS
from pipeline.stages.evaluate import EVALUATE
from pipeline.stages.recorded import RECORDED
from pipeline.stages.sanity import SANITY
from pipeline.stages.speed import SPEED
from pipeline.stages.verdict import JUDGE, JudgeParameters, JudgeRuntime
from prepare.lots import NOTHING, Needs
from prepare.stage import StageRecord, StageReference, StageSpec
from prepare.store import Store
from recipes.policy import Policy
from recipes.schema import Recipe, ServingProfile

MAKING = (WEIGHTS, CHECKED_WEIGHTS)
PieceKind = Literal["stage", "make", "serve", "block"]


@dataclass(frozen=True)
class Arm:
    """A baseline, variant or endpoint as it is served, with its stages in run order.

    `identity` is the model with its arguments, a part of keys. `folder` has the weights, or an
    endpoint's tokenizer. `max_length` is in tokens. Before the plan is built, `stages` make and
    check the weights. `profile` is as applied, if not the plan's. No server of one that is
    `recorded` starts.
    """

    recipe: Recipe
    identity: ServedModel
    folder: Path
    max_length: int
    stages: Mapping[str, StageSpec] = field(default_factory=dict)
    profile: ServingProfile | None = None
    draft: Path | None = None
    ready_timeout_seconds: float = 0.0
    recorded: RecordedArm | None = None

    @property
    def is_ours(self) -> bool:
        """Whether prepare serves it; an endpoint is served elsewhere, and a record not at all."""
        return self.identity.endpoint is None and self.recorded is None

    @property
    def making(self) -> list[StageSpec]:
        """Stages that make and check the weights."""
        return [self.stages[role] for role in MAKING if role in self.stages]

    @property
    def served(self) -> list[StageSpec]:
        """What one start of its server answers, in order."""
        if self.recorded is not None:
            return []
        return [
            spec
            for role, spec in self.stages.items()
            if role not in MAKING and spec.stage != SPEED.name
        ]


@dataclass(frozen=True)
class Plan:
    """A run: shared stages by role, the baseline, then the variants.

    `profile` is as applied; None for endpoints. `run` is '' to look ahead only. If the trial is a
    descent, variants are in its order, and none is asked after the first that does not pass.
    """

    policy: Policy
    shared: Mapping[str, StageSpec]
    baseline: Arm
    variants: tuple[Arm, ...]
    trial: Trial
    profile: ServingProfile | None = None
    run: str = ""

    @property
    def arms(self) -> tuple[Arm, ...]:
        """The baseline, then the variants."""
        return (self.baseline, *self.variants)


class PlanProgress:
    """Reader of the store, at each call: other copies write to it.

    Methods raise StoreError if a record is damaged.
    """

    def __init__(self, plan: Plan, store: Store) -> None:
        self.plan = plan
        self.store = store

    def find_current(self, spec: StageSpec) -> StageRecord | None:
        """Return the record of a stage that is done."""
        return self.store.find_current(spec.stage, spec.key)

    def is_done(self, specs: Iterable[StageSpec]) -> bool:
        return all(self.find_current(spec) is not None for spec in specs)

    def made(self) -> set[str]:
        """Return variants with stored weights."""
        variants = self.plan.variants
        return {arm.recipe.name for arm in variants if self.find_current(arm.stages[WEIGHTS])}

    def stages(self) -> list[StageSpec]:
        """Return every stage of the run, in order."""
        variants = self.plan.variants
        made = chain.from_iterable(arm.making for arm in variants)
        served = chain.from_iterable(arm.served for arm in self.plan.arms)
        speed = chain.from_iterable(self.speed(arm).values() for arm in variants)
        return [*self.plan.shared.values(), *made, *served, *speed, *map(self.judge, variants)]

    def speed(self, arm: Arm) -> dict[str, StageSpec]:
        """Return open speed gates by role, or a failed variant's measured ones."""
        speed = {role: spec for role, spec in arm.stages.items() if spec.stage == SPEED.name}
        if self.has_failed(arm):
            return {role: spec for role, spec in speed.items() if self.find_current(spec)}
        return speed

    def has_failed(self, arm: Arm) -> bool:
        """Return whether a blocking suite failed."""
        suites = [n for n, s in self.plan.policy.suites.items() if s.tier != "advisory"]
        records = (self.find_current(arm.stages[name]) for name in suites if name in arm.stages)
        return any(record and EVALUATE.result_of(record).state == "fail" for record in records)

    def fault(self, arm: Arm) -> str:
        """Return why the model is broken, or ''."""
        spec = arm.stages.get(FIRST_TEXTS)
        record = self.find_current(spec) if spec and spec.stage == SANITY.name else None
        return SANITY.result_of(record).fault(self.plan.policy.broken) if record else ""

    def judge(self, variant: Arm) -> StageSpec:
        """Return the verdict's stage, as far as evidence exists."""
        plan = self.plan
        inputs: dict[str, StageSpec | StageReference] = {}
        if plan.baseline.recorded is not None:
            inputs[RECORDED.name] = plan.baseline.stages[FIRST_TEXTS]
        for suite in plan.policy.suites:
            spec = variant.stages[suite]
            inputs[answers_role("baseline", suite)] = spec.inputs["baseline"]
            inputs[answers_role("candidate", suite)] = spec
            inputs[questions_role(suite)] = spec.inputs["questions"]
            twice = plan.baseline if plan.baseline.recorded is None else variant
            if again_role(suite) in twice.stages:
                inputs[again_role(suite)] = twice.stages[again_role(suite)]
        return JUDGE.spec(
            variant.recipe.name,
            JudgeParameters(
                policy=plan.policy,
                recipe=variant.recipe.name,
                trial=plan.trial,
                family=variant.recipe.family,
                profile=variant.profile or plan.profile,
            ),
            inputs | self.speed(variant),
            JudgeRuntime(run=plan.run),
            Path(variant.stages[FIRST_TEXTS].store),
        )


@dataclass(frozen=True)
class Piece:
    """What one process does in one go; it is done once all its stages are.

    stage: questions, a gate's collected loads, or a verdict. make: an arm's weights, or their
    check. serve: what one start of an arm's server answers. block: a load of each arm.
    """

    kind: PieceKind
    specs: tuple[StageSpec, ...]
    arms: tuple[Arm, ...] = ()
    needs: Needs = NOTHING

    @property
    def name(self) -> str:
        """Name of lock and files, the same in every run."""
        if self.kind == "serve":
            return serving_name(self.arms[0])
        kind = self.specs[-1].stage if self.kind == "stage" else self.kind
        return f"{kind}.{self.specs[-1].key}"

    @property
    def title(self) -> str:
        last = self.specs[-1]
        match self.kind:
            case "make":
                return f"{'checks' if last.stage == CHECK_WEIGHTS.name else 'makes'} {last.variant}"
            case "serve":
                return f"serves {self.arms[0].recipe.name}"
            case "block":
                return f"measures {title_of(last)}"
        return f"{last.stage} {last.variant}"


def serving_name(arm: Arm) -> str:
    """Return the name of the piece that serves the arm; '' of one that is on record."""
    return f"serve.{arm.served[0].key}" if arm.served else ""


def title_of(spec: StageSpec) -> str:
    """Return the stage's title, with its suite or speed gate."""
    if spec.stage == EVALUATE.name:
        return f"{spec.stage} {EVALUATE.runtime_of(spec).suite}"
    if spec.stage == SPEED.name:
        return f"{spec.stage} {SPEED.runtime_of(spec).gate}"
    if spec.stage == BLOCK.name:
        return f"{BLOCK.runtime_of(spec).gate} block {BLOCK.parameters_of(spec).number + 1}"
    return spec.stage
