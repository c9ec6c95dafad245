"""Lays out the asking of a policy's suites: the questions, and the rounds in which they come.

The same for a variant that this run makes and serves, and for an endpoint that someone else does.
"""

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
    """One side of the comparison as it is served, as far as the asking of it goes.

    Args:
        identity: all that says which model answers, and how it is served; part of the keys.
        after: stages that come before, by role, such as the check of its coherence.
        max_length: tokens that a prompt and its answer may have together.
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
        recipes: of all variants.
        attempt: that they are; None until it is known (`count`).
        measurements: by suite, the number of the measurement that is made or continued.
        run: id of the run.
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
        """Where each suite's questions come from; raises EvaluationDataError where nowhere."""
        return {name: self.sources.suite(name, s) for name, s in self.policy.suites.items()}

    @cached_property
    def questions(self) -> dict[str, StageSpec]:
        """The stages that lay out questions, by `questions.<suite>`."""
        return {f"questions.{name}": self._question_stage(name) for name in self.policy.suites}

    @cached_property
    def asked(self) -> dict[str, str]:
        """What critical suites ask, and what asks it: their answers depend on that, too."""
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
        """The planner for that attempt, with the measurement that each gate is at.

        Args:
            attempt: that the variants are.
            baseline: how it is served.
            variants: how they are served.
            run: id of the run.
            remeasured: what is measured again though it is over.
        """
        planner = replace(self, attempt=attempt, run=run)
        for name in self.policy.suites:
            number = planner._number(name, baseline, variants, remeasured)
            planner = replace(planner, measurements={**planner.measurements, name: number})
        return planner

    def rounds(self, served: EvaluationSide, baseline: Rounds | None) -> Rounds:
        """All rounds that there could be, by suite.

        Args:
            baseline: the baseline's rounds, which a variant's follow; None for the baseline.
        """
        return {name: self._rounds(name, served, baseline) for name in self.policy.suites}

    def repeats(self, rounds: Rounds) -> dict[str, StageSpec]:
        """The stages in which the baseline is asked some first questions again, by role."""
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
        """Questions of the suite at most; None where that is not known before they are read."""
        counts = (self.policy.suites[name].questions, self.found[name].questions)
        return min((count for count in counts if count is not None), default=None)

    def level(self, suite: str) -> float:
        """The level at which asking stops."""
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
        """The number of the measurement of a gate, of all variants together."""
        store = Store(self.store)
        ledger = AttemptLedger(store)

        def is_lost(number: int) -> bool:
            return any(_is_lost(spec(side, number), ledger, store) for side in sides)

        def is_over(number: int) -> bool:
            """Whether it was begun, and of each variant that it was begun for no round is left."""
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
        """One round of one side.

        Args:
            name: of the suite.
            served: the side.
            number: of the measurement.
            max_questions: limit of the round.
            rule: that ends it before.
            against: the baseline's round.
            runtime: where it is asked.
        """
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
        """What decides a gate; None of the baseline."""
        if recipe.family == "baseline":
            return None
        return gate_rule_of(self.policy.suites[name], recipe.family, self.level(name))


def _is_lost(spec: StageSpec, ledger: AttemptLedger, store: Store) -> bool:
    """Whether a begun measurement lost its log, or has other weights."""
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
    """Whether the last round that the answers so far call for is done."""
    found = [store.find_current(spec.stage, spec.key) for spec in rounds]
    done = [EVALUATE.result_of(record) for record in found if record is not None]
    return len(done) == len(rounds) or any(not each.has_more for each in done)
