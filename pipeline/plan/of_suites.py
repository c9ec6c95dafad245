"""Lays out the asking of a policy's suites: the questions, and the rounds in which they come.

The same for a variant that this run makes and serves, and for an endpoint that someone else does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from artifacts.served_model import ServedModel
from artifacts.stages.evaluate import EVALUATE, EvaluateParameters, EvaluateRuntime, Rule
from artifacts.stages.questions import QUESTIONS, QuestionsParameters, QuestionsRuntime
from artifacts.trials import Trial
from eval_gates.planned_bets import planned_bet_of, typical_change
from eval_gates.statistics.multiplicity import level_of
from eval_gates.statistics.rounds import expected_questions, round_sizes
from eval_gates.stopping import comparison_of
from pipeline.core.stage_record import StageSpec
from pipeline.plan.data_sources import SourceResolver, SuiteSource
from pipeline.plan.plan import Rounds, repeat_role
from recipes.policy import AnySuite, Policy
from recipes.schema import Recipe

QUESTION_SEED = 20240814


@dataclass(frozen=True)
class Served:
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
        recipes: of all variants, since several raise what each must show.
        trial: which one of the baseline's this is, where trials are counted.
    """

    policy: Policy
    recipes: tuple[Recipe, ...]
    sources: SourceResolver
    environment: str
    store: Path
    trial: Trial | None = None

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

    def rounds(self, served: Served, baseline: Rounds | None) -> Rounds:
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
            if suite.repeat:
                asked_again = {"upto": suite.repeat, "repeat": 1}
                # Other neighbours in the batches, as another day would have them.
                concurrency = max(1, suite.concurrency // 2)
                slower = {"suite": repeat_role(name), "concurrency": concurrency}
                repeats[repeat_role(name)] = EVALUATE.spec(
                    first.variant,
                    EVALUATE.parameters_of(first).model_copy(update=asked_again),
                    first.inputs,
                    EVALUATE.runtime_of(first).model_copy(update=slower),
                    self.store,
                )
        return repeats

    def cap(self, name: str) -> int | None:
        """Questions of the suite at most; None where that is not known before they are read."""
        counts = (self.policy.suites[name].questions, self.found[name].questions)
        return min((count for count in counts if count is not None), default=None)

    def level(self) -> float:
        """The error rate at which asking stops: that of Holm's first step, the strictest."""
        if self.trial is None:
            return level_of(self.policy.alpha, len(self.recipes))
        return level_of(self.policy.alpha, len(self.trial.variants), self.trial.number)

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

    def _rounds(self, name: str, served: Served, baseline: Rounds | None) -> tuple[StageSpec, ...]:
        suite, specs = self.policy.suites[name], []
        for number, upto in enumerate(self._sizes(name)):
            inputs = {**served.after, "questions": self.questions[f"questions.{name}"]}
            if baseline is not None:
                inputs["baseline"] = baseline[name][number]
            spec = EVALUATE.spec(
                served.recipe.name,
                EvaluateParameters(
                    **dict(served.identity),
                    suite=suite,
                    environment=self.environment,
                    max_length=served.max_length,
                    upto=upto,
                    batch=suite.batch,
                    rule=self._rule(suite, served.recipe) if baseline is not None else None,
                ),
                inputs,
                EvaluateRuntime(
                    tokenizer=str(served.tokenizer),
                    environment="evaluate",
                    suite=name if number == 0 else f"{name}, round {number + 1}",
                    concurrency=suite.concurrency,
                ),
                self.store,
            )
            specs.append(spec)
        return tuple(specs)

    def _sizes(self, name: str) -> list[int]:
        suite, cap = self.policy.suites[name], self.cap(name)
        if suite.test == "fixed":
            return round_sizes(float("inf"), suite.batch, cap)
        expected = max(
            expected_questions(
                comparison_of(suite.margins[recipe.family]),
                self.level(),
                suite.expected_flips,
                typical_change(suite),
                planned_bet_of(suite, recipe.family),
            )
            for recipe in self.recipes
            if recipe.family != "baseline"
        )
        return round_sizes(expected, suite.batch, cap)

    def _rule(self, suite: AnySuite, recipe: Recipe) -> Rule | None:
        """What decides a gate, and so ends the asking; None where all questions are asked."""
        if suite.test == "fixed" or recipe.family == "baseline":
            return None
        return Rule(
            margin=suite.margins[recipe.family],
            alpha=self.level(),
            planned_bet=planned_bet_of(suite, recipe.family),
            about=suite.about,
            minutes=suite.minutes,
            # What a time budget left open, a higher cap continues, as a larger budget does.
            cap=suite.questions if suite.minutes is not None else None,
        )
