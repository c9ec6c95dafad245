"""Plans the questions of a policy's suites and their rounds, for served models and endpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from eval_gates.gate_rule import GateRule, gate_rule_of
from eval_gates.planned_bets import planned_bet_of
from eval_gates.statistics.question_rounds import expected_questions, round_sizes
from eval_gates.stopping import comparison_of
from eval_gates.suites.suite_kind import SuiteSource, kind_of
from pipeline.core.stage_record import StageSpec
from pipeline.core.store import Store
from pipeline.plan.data_sources import SourceResolver
from pipeline.plan.plan import Rounds, repeat_role
from pipeline.serving.served_model import ServedModel
from pipeline.stages.attempts import NOTHING, Attempt, AttemptLedger, Counted, Remeasured
from pipeline.stages.evaluate import (
    EVALUATE,
    EvaluateParameters,
    EvaluateRuntime,
    log_key,
    measurement_key,
)
from pipeline.stages.evaluate.answer_logs import has_log
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
        attempt: None until `count` finds it.
        measurements: by suite, the number of the measurement that is made or continued.
    """

    policy: Policy
    recipes: tuple[Recipe, ...]
    sources: SourceResolver
    environment: str
    store: Path
    attempt: Attempt | None = None
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
        attempt: Attempt,
        baseline: EvaluationSide,
        variants: Sequence[EvaluationSide],
        run: str = "",
        remeasured: Remeasured = NOTHING,
    ) -> EvaluationPlanner:
        """Return the planner of that attempt, with each gate's measurement number."""
        planner = replace(self, attempt=attempt, run=run)
        for name in self.policy.suites:
            number = planner._number(name, baseline, variants, remeasured)
            planner = replace(planner, measurements={**planner.measurements, name: number})
        return planner

    def rounds(self, served: EvaluationSide, baseline: Rounds | None) -> Rounds:
        """Return all possible rounds by suite; `baseline` has the baseline's, if not `served`."""
        return {name: self._rounds(name, served, baseline) for name in self.policy.suites}

    def repeats(self, rounds: Rounds) -> dict[str, StageSpec]:
        """Return the stages that repeat some of the baseline's first questions, by role."""
        repeats = {}
        for name, suite in self.policy.suites.items():
            first = rounds[name][0]
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

    def cap(self, name: str) -> int | None:
        """Return the suite's maximum number of questions; None if unknown before they are read."""
        counts = (self.policy.suites[name].questions, self.found[name].questions)
        return min((count for count in counts if count is not None), default=None)

    def level(self, suite: str) -> float:
        return self._counted.level(self.measurements.get(suite, 1))

    @property
    def _counted(self) -> Attempt:
        if self.attempt is None:
            raise ValueError("the attempt is not known yet")
        return self.attempt

    def _number(
        self,
        suite: str,
        baseline: EvaluationSide,
        variants: Sequence[EvaluationSide],
        remeasured: Remeasured,
    ) -> int:
        """Return the measurement number of a gate, for all variants together."""
        store = Store(self.store)
        ledger = AttemptLedger(store)

        def is_lost(number: int) -> bool:
            return any(_is_lost(spec(side, number), ledger, store) for side in sides)

        def is_over(number: int) -> bool:
            """Return whether all variants with this measurement have finished their rounds."""
            planner = replace(self, measurements={**self.measurements, suite: number})
            asked = planner._rounds(suite, baseline, None)
            begun = [v for v, key in zip(variants, keys, strict=True) if ledger.latest(key)]
            rounds = [planner._rounds(suite, each, {suite: asked}) for each in begun]
            return bool(rounds) and all(_are_over(each, store) for each in rounds)

        def spec(side: EvaluationSide, number: int) -> StageSpec:
            return self._spec(suite, side, number, max_questions=None, rule=None)

        sides = (baseline, *variants)
        keys = [measurement_key(spec(each, 1)) for each in variants]
        return ledger.next_number(keys, is_lost, is_over, suite, remeasured)

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

    def _rounds(
        self, name: str, served: EvaluationSide, baseline: Rounds | None
    ) -> tuple[StageSpec, ...]:
        suite, number = self.policy.suites[name], self.measurements.get(name, 1)
        rule = self._rule(name, served.recipe) if baseline is not None else None
        counted = Counted(
            attempt=self._counted if baseline is not None else None,
            measurement=measurement_key(
                self._spec(name, served, number, max_questions=None, rule=None)
            ),
            run=self.run,
        )
        return tuple(
            self._spec(
                name,
                served,
                number,
                max_questions=size,
                rule=rule,
                against=baseline[name][place] if baseline is not None else None,
                runtime=EvaluateRuntime(
                    tokenizer=str(served.tokenizer),
                    environment="evaluate",
                    suite=name if place == 0 else f"{name}, round {place + 1}",
                    concurrency=suite.concurrency,
                    counted=counted,
                ),
            )
            for place, size in enumerate(self._sizes(name))
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
                batch=suite.batch,
                rule=rule,
                measurement=number,
            ),
            {**served.after, "questions": self.questions[f"questions.{name}"], **before},
            runtime or EvaluateRuntime(),
            self.store,
        )

    def _sizes(self, name: str) -> list[int]:
        suite, cap = self.policy.suites[name], self.cap(name)
        if suite.test == "fixed":
            return round_sizes(float("inf"), suite.batch, cap)
        expected = max(
            expected_questions(
                comparison_of(suite.margins[recipe.family]),
                self.level(name),
                suite.expected_flips,
                kind_of(suite).typical_change(suite),
                planned_bet_of(suite, recipe.family),
            )
            for recipe in self.recipes
            if recipe.family != "baseline"
        )
        return round_sizes(expected, suite.batch, cap)

    def _rule(self, name: str, recipe: Recipe) -> GateRule | None:
        if recipe.family == "baseline":
            return None
        return gate_rule_of(self.policy.suites[name], recipe.family, self.level(name))


def _is_lost(spec: StageSpec, ledger: AttemptLedger, store: Store) -> bool:
    """Return whether a measurement lost its log, or its log has other weights."""
    number = EVALUATE.parameters_of(spec).measurement
    begun = ledger.measurement(measurement_key(spec), number)
    if begun is None:
        return False
    if not has_log(store, begun.log):
        return True
    records = {role: store.find(each.stage, each.key) for role, each in spec.inputs.items()}
    found = {role: record.result for role, record in records.items() if record is not None}
    try:
        return log_key(spec, found.__getitem__) != begun.log
    except KeyError:  # made again before it is asked, maybe with the same result
        return False


def _are_over(rounds: Sequence[StageSpec], store: Store) -> bool:
    """Return whether the last round that the answers require is done."""
    found = [store.find_current(spec.stage, spec.key) for spec in rounds]
    done = [EVALUATE.result_of(record) for record in found if record is not None]
    return len(done) == len(rounds) or any(not each.has_more for each in done)
