"""A run's report with the evidence of its variants.

A missing part is None with a sentence in `missing`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from artifacts.run_record import RunReport
from eval_gates.rows import Answer, Question
from pipeline.stages import answers_role, questions_role
from pipeline.stages.evaluate import EVALUATE, EvaluateParameters, EvaluateResult
from pipeline.stages.evidence import Evidence
from pipeline.stages.verdict import JUDGE
from prepare.errors import PrepareError
from prepare.stage import Parameters, Result, Stage, StageReference, TypedStageRecord
from prepare.store import Store
from recipes.policy import AnySuite

Content = TypeVar("Content")


@dataclass(frozen=True)
class PairedAnswers:
    """Both sides' answers to a suite's questions."""

    baseline: list[Answer]  # in the order of asking
    candidate: list[Answer]  # to the same questions
    questions: dict[str, Question]  # by id, as far as recorded
    suite: AnySuite


class ReportedRun:
    """A run with its evidence; `with_conversations` reads private texts, too."""

    def __init__(
        self, report: RunReport, store: Store, *, with_conversations: bool = False
    ) -> None:
        self.report = report
        self.store = store
        self.with_conversations = with_conversations
        self.missing: list[str] = []
        self._finished: dict[str, dict[str, StageReference]] = {}  # by variant, and reported name
        for stage in report.stages:
            if stage.key is not None and stage.status in ("ran", "reused"):
                reference = StageReference(stage=stage.stage, key=stage.key)
                self._finished.setdefault(stage.variant, {})[stage.name] = reference
        self._evidence = Evidence(store, {})

    @property
    def recipes(self) -> list[str]:
        judged = [variant.recipe for variant in self.report.variants]
        return list(dict.fromkeys([*judged, *(self.report.resolved.recipes)]))

    def kept(
        self, stage: Stage[Parameters, Any, Result], variant: str, name: str = ""
    ) -> TypedStageRecord[Parameters, Result] | None:
        """Return the variant's record of a stage, reported under another name."""
        reference = self._finished.get(variant, {}).get(name or stage.name)
        if reference is None:
            return None

        def read() -> TypedStageRecord[Parameters, Result] | None:
            record = self._evidence.find_at(reference)
            if record is None:
                return None
            kept = stage.typed(record)
            _ = kept.parameters, kept.result  # or they raise
            return kept

        return self._read(f"{stage.name} of {variant}", read)

    def find_answers(self, recipe: str, suite: str) -> PairedAnswers | None:
        return self._read(
            f"the answers of {recipe} to {suite}", lambda: self._read_answered(recipe, suite)
        )

    def _read_answered(self, recipe: str, suite: str) -> PairedAnswers | None:
        judge = self.kept(JUDGE, recipe)
        if judge is None or suite not in judge.parameters.policy.suites:
            return None
        evidence = Evidence(self.store, judge.record.inputs, judge.record)
        with_texts = self.with_conversations
        baseline = evidence.whole_answers(answers_role("baseline", suite), with_texts=with_texts)
        candidate = evidence.whole_answers(answers_role("candidate", suite), with_texts=with_texts)
        baseline = baseline[: len(candidate)]
        if [row.id for row in baseline] != [row.id for row in candidate]:
            raise ValueError("they are not to the same questions")
        questions = self._read(
            f"the questions of {suite}",
            lambda: evidence.whole_questions(questions_role(suite), with_texts=with_texts),
        )
        return PairedAnswers(
            baseline, candidate, questions or {}, judge.parameters.policy.suites[suite]
        )

    def collect_answers(
        self, recipe: str
    ) -> list[tuple[str, TypedStageRecord[EvaluateParameters, EvaluateResult]]]:
        """Return a variant's answers by suite."""
        collected = []
        for name, reference in self._finished.get(recipe, {}).items():
            if reference.stage != EVALUATE.name:
                continue
            record = self.kept(EVALUATE, recipe, name)
            if record is not None and not record.parameters.is_again:
                collected.append((name.removeprefix("evaluate "), record))
        return collected

    def _read(self, words: str, read: Callable[[], Content]) -> Content | None:
        """Return what is read, or None and a note on what is damaged or gone."""
        try:
            return read()
        except (PrepareError, OSError, ValueError, KeyError) as error:
            why = error.message if isinstance(error, PrepareError) else str(error)
            if (sentence := f"{words} cannot be used: {why}") not in self.missing:
                self.missing.append(sentence)
            return None
