"""A run's records, answers and questions.

A missing part is None with a sentence in `missing`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from artifacts.evidence.verdict_inputs import record_of
from artifacts.run_record import RunReport
from eval_gates.answer_log import ANSWERS, QUESTIONS, parse_answers
from eval_gates.rows import Answer, Question
from eval_gates.suites.fidelity import TEXTS as CONVERSATIONS
from eval_gates.suites.json_lines import read_rows
from pipeline.stages.evaluate import EVALUATE, TEXTS, EvaluateParameters, EvaluateResult
from pipeline.stages.judge import JUDGE
from prepare.digest import digest_bytes
from prepare.errors import PrepareError
from prepare.stage import Parameters, Result, Stage, StageReference, TypedStageRecord
from prepare.store import Store
from prepare.untrusted import MAX_ROWS_CHARACTERS, read_regular
from recipes.catalog import BASELINE
from recipes.policy import AnySuite

Found = TypeVar("Found")


@dataclass(frozen=True)
class PairedAnswers:
    """Both sides' answers to a suite's questions."""

    baseline: list[Answer]  # in the order of asking
    candidate: list[Answer]  # to the same questions
    questions: dict[str, Question]  # by id, as far as recorded
    suite: AnySuite


class RunEvidence:
    """A run's evidence; `with_conversations` reads private texts, too."""

    def __init__(
        self, report: RunReport, store: Store, *, with_conversations: bool = False
    ) -> None:
        self.report = report
        self.store = store
        self.with_conversations = with_conversations
        self.missing: list[str] = []
        self._finished = {
            (stage.name, stage.variant): StageReference(stage=stage.stage, key=stage.key)
            for stage in report.stages
            if stage.key is not None and stage.status in ("ran", "reused")
        }

    @property
    def recipes(self) -> list[str]:
        judged = [variant.recipe for variant in self.report.variants]
        return list(dict.fromkeys([*judged, *(self.report.resolved.recipes)]))

    def kept(
        self, stage: Stage[Parameters, Any, Result], variant: str, name: str = ""
    ) -> TypedStageRecord[Parameters, Result] | None:
        """Return the variant's record of a stage, reported under another name."""
        found = self._finished.get((name or stage.name, variant))
        return self._read(f"{stage.name} of {variant}", lambda: self._typed(stage, found))

    def find_answers(self, recipe: str, suite: str) -> PairedAnswers | None:
        return self._read(
            f"the answers of {recipe} to {suite}", lambda: self._read_answered(recipe, suite)
        )

    def _read_answered(self, recipe: str, suite: str) -> PairedAnswers | None:
        judge = self.kept(JUDGE, recipe)
        if judge is None or suite not in judge.parameters.policy.suites:
            return None
        inputs = judge.record.inputs
        baseline, candidate = (
            self._answers(inputs[f"{side}.{suite}"]) for side in (BASELINE, "candidate")
        )
        baseline = baseline[: len(candidate)]
        if [row.id for row in baseline] != [row.id for row in candidate]:
            raise ValueError("they are not to the same questions")
        asked = inputs[f"questions.{suite}"]
        questions = self._read(f"the questions of {suite}", lambda: self._questions(asked))
        return PairedAnswers(
            baseline, candidate, questions or {}, judge.parameters.policy.suites[suite]
        )

    def collect_answers(
        self, recipe: str
    ) -> list[tuple[str, TypedStageRecord[EvaluateParameters, EvaluateResult]]]:
        """Return a variant's answers by suite."""
        names = [
            name
            for (name, variant), found in self._finished.items()
            if variant == recipe and found.stage == EVALUATE.name and not name.endswith(" again")
        ]
        records = [
            (name.removeprefix("evaluate "), self.kept(EVALUATE, recipe, name)) for name in names
        ]
        return [(suite, record) for suite, record in records if record is not None]

    def _answers(self, reference: StageReference) -> list[Answer]:
        folder = self.store.stage_folder(reference.stage, reference.key)
        content = read_regular(folder / ANSWERS, MAX_ROWS_CHARACTERS)
        rows = parse_answers(content)
        result = EVALUATE.result_of(record_of(self.store.find, reference))
        if digest_bytes(content) != result.answers_digest:
            raise ValueError("they were changed since they were given")
        texts = self._private(folder / TEXTS)
        return [replace(row, own={**row.own, **texts.get(row.id, {})}) for row in rows]

    def _questions(self, asked: StageReference) -> dict[str, Question]:
        folder = self.store.stage_folder(asked.stage, asked.key)
        chats = self._private(folder / CONVERSATIONS)
        rows = (row for _, row in read_rows(folder / QUESTIONS))
        found = [Question.from_row({**row, **chats.get(row["id"], {})}) for row in rows]
        return {each.id: each for each in found}

    def _private(self, file: Path) -> dict[str, dict[str, Any]]:
        """Return private rows by id, if asked for."""
        if not self.with_conversations or not file.is_file():
            return {}
        return {row["id"]: row for _, row in read_rows(file)}

    def _typed(
        self, stage: Stage[Parameters, Any, Result], found: StageReference | None
    ) -> TypedStageRecord[Parameters, Result] | None:
        record = self.store.find(found.stage, found.key) if found is not None else None
        if record is None:
            return None
        kept = stage.typed(record)
        _ = kept.parameters, kept.result  # or they raise
        return kept

    def _read(self, words: str, read: Callable[[], Found]) -> Found | None:
        """Return what is read, or None and a note on what is damaged or gone."""
        try:
            return read()
        except (PrepareError, OSError, ValueError, KeyError) as error:
            why = error.message if isinstance(error, PrepareError) else str(error)
            if (sentence := f"{words} cannot be used: {why}") not in self.missing:
                self.missing.append(sentence)
            return None
