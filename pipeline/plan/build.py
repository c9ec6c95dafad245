"""Builds the plan of two or more arms: what is asked of each, what is measured, what is judged.

An arm is a baseline or variant as it is served, or an endpoint. `model`, `recheck` and `gate`
differ in their arms alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from eval_gates.gate_rule import gate_rule_of
from pipeline.core.digest import digest_json
from pipeline.core.stage_record import StageSpec
from pipeline.core.store import Store
from pipeline.plan.data_sources import SourceResolver
from pipeline.plan.plan import Plan, VariantPlan, repeat_role
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
from pipeline.serving.serving_spec import ExternalEndpoint
from pipeline.stages.attempts import NOTHING, AttemptLedger, Counted, Remeasured, Trial, trial_of
from pipeline.stages.evaluate import EVALUATE, EvaluateParameters, EvaluateRuntime
from pipeline.stages.questions import QUESTIONS, QuestionsParameters, QuestionsRuntime
from pipeline.stages.screen import SCREEN
from recipes.policy import Policy
from recipes.schema import Recipe, ServingProfile

QUESTION_SEED = 20240814


@dataclass(frozen=True)
class Arm:
    """A baseline or variant as it is served, or an endpoint.

    Args:
        identity: the model and its serving arguments; part of the keys.
        folder: of the served weights, or of an endpoint's tokenizer.
        max_length: maximum tokens of prompt and answer together.
        made: stages that make and check the weights, by role; empty for the baseline.
        profile: as it is applied, if this arm has another than the plan's.
    """

    recipe: Recipe
    identity: ServedModel
    folder: Path
    max_length: int
    made: Mapping[str, StageSpec] = field(default_factory=dict)
    arguments: ServingArguments | None = None
    endpoint: ExternalEndpoint | None = None
    profile: ServingProfile | None = None
    trust_remote_code: bool = False
    draft: Path | None = None
    ready_timeout_seconds: float = 0.0

    def plan(self, stages: Mapping[str, StageSpec]) -> VariantPlan:
        """Return the arm with what is asked and measured, by role."""
        return VariantPlan(
            recipe=self.recipe,
            model=self.folder,
            arguments=self.arguments,
            stages={**self.made, **stages},
            served=tuple(stages),
            trust_remote_code=self.trust_remote_code,
            draft=self.draft,
            ready_timeout_seconds=self.ready_timeout_seconds,
            endpoint=self.endpoint,
            profile=self.profile,
        )


@dataclass(frozen=True)
class Builder:
    """Builds the plan of a baseline and its variants.

    Args:
        reference: what identifies the baseline, for the attempts against it.
        identities: of the environments `evaluate`, and of `serve` for the load generator.
        machine: that loads are measured on, or the kind of node.
        profile: as it is applied; None for endpoints.
        tried: all recipes that the error rate is divided by, if more than `variants`.
        run: id of the run; '' to look ahead only.
        remeasured: gates to measure again although they are finished.
        other_weights: stages of existing weights, for which both sides are measured again.
    """

    policy: Policy
    baseline: Arm
    variants: Sequence[Arm]
    reference: Mapping[str, str]
    sources: SourceResolver
    identities: Mapping[str, str]
    store: Path
    machine: str
    profile: ServingProfile | None = None
    tried: Sequence[Recipe] = ()
    run: str = ""
    remeasured: Remeasured = NOTHING
    other_weights: Sequence[str] = ()

    def build(self) -> Plan:
        """Return the plan; raise EvaluationDataError if a suite has no questions."""
        policy = self.policy
        questions = {name: self._questions(name) for name in policy.suites}
        heard = {self.baseline.recipe.name: self._screen(self.baseline, {})}
        for arm in self.variants:
            before = {"baseline": heard[self.baseline.recipe.name]}
            if arm.made:
                before["weights"] = arm.made["check_weights"]
            heard[arm.recipe.name] = self._screen(arm, before)
        pinned = pin_files(policy, self.profile.accelerator if self.profile else None)
        trial = self._trial(questions, heard, pinned)
        asked = _Asking(self, questions, heard, trial)
        numbers = {name: self._number(name, asked) for name in policy.suites}
        first = {name: asked.stage(name, self.baseline, numbers[name]) for name in policy.suites}
        of_baseline = {"screen": heard[self.baseline.recipe.name], **first}
        repeats = {repeat_role(n): self._repeat(n, s) for n, s in first.items() if self._again(n)}
        variants = []
        for arm in self.variants:
            stages = {"screen": heard[arm.recipe.name]}
            for name in policy.suites:
                stages[name] = asked.stage(name, arm, numbers[name], first[name])
            variants.append(arm.plan({**stages, **self._speed(arm, heard, trial)}))
        return Plan(
            policy=pinned,
            shared={f"questions.{name}": spec for name, spec in questions.items()},
            baseline=self.baseline.plan({**of_baseline, **repeats}),
            variants=tuple(variants),
            profile=self.profile,
            trial=trial,
            run=self.run,
        )

    def _trial(
        self, questions: Mapping[str, StageSpec], heard: Mapping[str, StageSpec], pinned: Policy
    ) -> Trial:
        """Return the trial that these variants are."""
        critical = {
            name: spec.key
            for name, spec in questions.items()
            if self.policy.suites[name].tier == "critical"
        }
        asked = {
            "environment": self.identities["evaluate"],
            **critical,
            **asked_of_speed(self.policy, self.profile),
        }
        keys = {
            arm.recipe.name: digest_json(
                [heard[arm.recipe.name].key, arm.recipe.family, arm.max_length, asked]
            )
            for arm in self.variants
        }
        others = {recipe.name: "" for recipe in self.tried if recipe.name not in keys}
        return trial_of(dict(self.reference), {**keys, **others}, pinned)

    def _number(self, suite: str, asked: _Asking) -> int:
        """Return the number of a suite's measurement, for all variants together."""
        store = Store(self.store)

        def is_over(number: int) -> bool:
            first = asked.stage(suite, self.baseline, number)
            stages = [asked.stage(suite, arm, number, first) for arm in self.variants]
            return all(store.find_current(spec.stage, spec.key) is not None for spec in stages)

        ledger = AttemptLedger(store)
        return ledger.next_number(asked.trial, suite, is_over, self.remeasured)

    def _screen(self, arm: Arm, before: Mapping[str, StageSpec]) -> StageSpec:
        inputs = dict(before)
        return SCREEN.spec(arm.recipe.name, arm.identity, inputs, ServerRuntime(), self.store)

    def _questions(self, name: str) -> StageSpec:
        source = self.sources.suite(name, self.policy.suites[name])
        return QUESTIONS.spec(
            name,
            QuestionsParameters(
                suite=self.policy.suites[name], source=source.identity, seed=QUESTION_SEED
            ),
            {},
            QuestionsRuntime(
                folder=str(source.folder) if source.folder else None,
                environment="evaluate",
                suite=name,
            ),
            self.store,
        )

    def _again(self, suite: str) -> bool:
        return bool(self.policy.suites[suite].noise_floor_questions)

    def _repeat(self, name: str, first: StageSpec) -> StageSpec:
        """Return the stage that repeats some of the baseline's first questions."""
        suite = self.policy.suites[name]
        again = {"max_questions": suite.noise_floor_questions, "repeat_id": 1}
        # Other neighbors in the batches, as another day would have them.
        slower = {"suite": repeat_role(name), "concurrency": max(1, suite.concurrency // 2)}
        return EVALUATE.spec(
            first.variant,
            EVALUATE.parameters_of(first).model_copy(update=again),
            first.inputs,
            EVALUATE.runtime_of(first).model_copy(update={**slower, "counted": None}),
            self.store,
        )

    def _speed(
        self, arm: Arm, heard: Mapping[str, StageSpec], trial: Trial
    ) -> dict[str, StageSpec]:
        """Return the stages of the policy's speed gates, by role."""
        claims = find_claims(
            self.policy, self.profile, alpha=trial.level, max_length=arm.max_length
        )
        before, after = (
            SpeedSide(each.recipe.name, each.identity, heard[each.recipe.name])
            for each in (self.baseline, arm)
        )
        sides = Sides(
            before,
            after,
            tokenizer=self.baseline.folder,
            environment=self.identities.get("serve", ""),
            machine=self.machine,
            other_weights=tuple(self.other_weights),
        )
        return speed_stages(sides, trial, claims, self.run, self.remeasured)


@dataclass(frozen=True)
class _Asking:
    """What all stages of a plan's suites share."""

    of: Builder
    questions: Mapping[str, StageSpec]
    heard: Mapping[str, StageSpec]
    trial: Trial

    def stage(
        self, name: str, arm: Arm, number: int, against: StageSpec | None = None
    ) -> StageSpec:
        """Return the stage in which an arm is asked a suite.

        Args:
            number: of the suite's measurement.
            against: the baseline's stage; None for the baseline itself.
        """
        suite = self.of.policy.suites[name]
        inputs = {"screen": self.heard[arm.recipe.name], "questions": self.questions[name]}
        if arm.made:
            inputs["weights"] = arm.made["check_weights"]
        rule = counted = None
        if against is not None and arm.recipe.family != "baseline":
            inputs["baseline"] = against
            rule = gate_rule_of(suite, arm.recipe.family, self.trial.level)
            counted = Counted(trial=self.trial, gate=name, run=self.of.run)
        return EVALUATE.spec(
            arm.recipe.name,
            EvaluateParameters(
                **dict(arm.identity),
                suite=suite,
                environment=self.of.identities["evaluate"],
                max_length=arm.max_length,
                max_questions=suite.questions,
                rule=rule,
                measurement=number,
            ),
            inputs,
            EvaluateRuntime(
                tokenizer=str(arm.folder),
                environment="evaluate",
                suite=name,
                concurrency=suite.concurrency,
                counted=counted,
            ),
            self.of.store,
        )
