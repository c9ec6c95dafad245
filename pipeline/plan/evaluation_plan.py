"""Plans the questions of a policy's suites, for served models and endpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from eval_gates.gate_rule import GateRule, gate_rule_of
from eval_gates.suites.suite_kind import SuiteSource
from pipeline.core.stage_record import StageSpec
from pipeline.core.store import Store
from pipeline.plan.data_sources import SourceResolver
from pipeline.plan.plan import repeat_role
from pipeline.serving.served_model import ServedModel
from pipeline.stages.attempts import NOTHING, AttemptLedger, Counted, Remeasured, Trial
from pipeline.stages.evaluate import EVALUATE, EvaluateParameters, EvaluateRuntime
from pipeline.stages.questions import QUESTIONS, QuestionsParameters, QuestionsRuntime
from recipes.policy import Policy
from recipes.schema import Recipe

QUESTION_SEED = 20240814


@dataclass(frozen=True)
class EvaluationSide:
    """One side of the comparison, as evaluation clients see it.

    Args:
        identity: the model and its serving arguments; part of the keys.
        after: stages that must finish first, by role.
        max_length: maximum tokens of prompt and answer together.
    """

    recipe: Recipe
    identity: ServedModel
    after: Mapping[str, StageSpec]
    tokenizer: Path
    max_length: int


@dataclass(frozen=True)
class EvaluationPlanner:
    """Plans a policy's suites for a baseline and its variants.

    Args:
        trial: None until `count` sets it.
        measurements: by suite, the number of the measurement that is made or continued.
    """

    policy: Policy
    recipes: tuple[Recipe, ...]
    sources: SourceResolver
    environment: str
    store: Path
    trial: Trial | None = None
    measurements: Mapping[str, int] = field(default_factory=dict)
    run: str = ""

    @cached_property
    def found(self) -> dict[str, SuiteSource]:
        """Sources of each suite's questions; raises EvaluationDataError."""
        return {name: self.sources.suite(name, s) for name, s in self.policy.suites.items()}

    @cached_property
    def questions(self) -> dict[str, StageSpec]:
        return {f"questions.{name}": self._question_stage(name) for name in self.policy.suites}

    @cached_property
    def asked(self) -> dict[str, str]:
        """Keys of the questions of critical suites, and the environment that evaluates them."""
        keys = {name: self.questions[f"questions.{name}"].key for name in self.policy.suites}
        return {
            "environment": self.environment,
            **{n: key for n, key in keys.items() if self.policy.suites[n].tier == "critical"},
        }

    def count(
        self,
        trial: Trial,
        baseline: EvaluationSide,
        variants: Sequence[EvaluationSide],
        run: str = "",
        remeasured: Remeasured = NOTHING,
    ) -> EvaluationPlanner:
        """Return the planner of that trial, with each gate's measurement number."""
        planner = replace(self, trial=trial, run=run)
        for name in self.policy.suites:
            number = planner._number(name, baseline, variants, remeasured)
            planner = replace(planner, measurements={**planner.measurements, name: number})
        return planner

    def stages(
        self, served: EvaluationSide, baseline: Mapping[str, StageSpec] | None
    ) -> dict[str, StageSpec]:
        """Return the stage of each suite; `baseline` has the baseline's, if not `served`."""
        return {name: self._stage(name, served, baseline) for name in self.policy.suites}

    def repeats(self, asked: Mapping[str, StageSpec]) -> dict[str, StageSpec]:
        """Return the stages that repeat some of the baseline's first questions, by role."""
        repeats = {}
        for name, suite in self.policy.suites.items():
            first = asked[name]
            if suite.noise_floor_questions:
                asked_again = {"max_questions": suite.noise_floor_questions, "repeat_id": 1}
                # Other neighbours in the batches, as another day would have them.
                concurrency = max(1, suite.concurrency // 2)
                slower = {"suite": repeat_role(name), "concurrency": concurrency}
                repeats[repeat_role(name)] = EVALUATE.spec(
                    first.variant,
                    EVALUATE.parameters_of(first).model_copy(update=asked_again),
                    first.inputs,
                    EVALUATE.runtime_of(first).model_copy(update={**slower, "counted": None}),
                    self.store,
                )
        return repeats

    @property
    def _counted(self) -> Trial:
        if self.trial is None:
            raise ValueError("the trial is not known yet")
        return self.trial

    def _number(
        self,
        suite: str,
        baseline: EvaluationSide,
        variants: Sequence[EvaluationSide],
        remeasured: Remeasured,
    ) -> int:
        """Return the measurement number of a gate, for all variants together."""
        store = Store(self.store)

        def is_over(number: int) -> bool:
            """Return whether all variants with this measurement have answered."""
            planner = replace(self, measurements={**self.measurements, suite: number})
            asked = planner._stage(suite, baseline, None)
            stages = [planner._stage(suite, each, {suite: asked}) for each in variants]
            return all(store.find_current(spec.stage, spec.key) is not None for spec in stages)

        return AttemptLedger(store).next_number(self._counted, suite, is_over, remeasured)

    def _question_stage(self, name: str) -> StageSpec:
        source = self.found[name]
        return QUESTIONS.spec(
            name,
            QuestionsParameters(
                suite=self.policy.suites[name],
                source=source.identity,
                seed=QUESTION_SEED,
            ),
            {},
            QuestionsRuntime(
                folder=str(source.folder) if source.folder else None,
                environment="evaluate",
                suite=name,
            ),
            self.store,
        )

    def _stage(
        self, name: str, served: EvaluationSide, baseline: Mapping[str, StageSpec] | None
    ) -> StageSpec:
        suite, number = self.policy.suites[name], self.measurements.get(name, 1)
        rule = self._rule(name, served.recipe) if baseline is not None else None
        counted = None
        if baseline is not None:
            counted = Counted(trial=self._counted, gate=name, run=self.run)
        return self._spec(
            name,
            served,
            number,
            max_questions=suite.questions,
            rule=rule,
            against=baseline[name] if baseline is not None else None,
            runtime=EvaluateRuntime(
                tokenizer=str(served.tokenizer),
                environment="evaluate",
                suite=name,
                concurrency=suite.concurrency,
                counted=counted,
            ),
        )

    def _spec(
        self,
        name: str,
        served: EvaluationSide,
        number: int,
        *,
        max_questions: int | None,
        rule: GateRule | None,
        against: StageSpec | None = None,
        runtime: EvaluateRuntime | None = None,
    ) -> StageSpec:
        suite = self.policy.suites[name]
        before = {"baseline": against} if against is not None else {}
        return EVALUATE.spec(
            served.recipe.name,
            EvaluateParameters(
                **dict(served.identity),
                suite=suite,
                environment=self.environment,
                max_length=served.max_length,
                max_questions=max_questions,
                rule=rule,
                measurement=number,
            ),
            {**served.after, "questions": self.questions[f"questions.{name}"], **before},
            runtime or EvaluateRuntime(),
            self.store,
        )

    def _rule(self, name: str, recipe: Recipe) -> GateRule | None:
        if recipe.family == "baseline":
            return None
        return gate_rule_of(self.policy.suites[name], recipe.family, self._counted.level)
