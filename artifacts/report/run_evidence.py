"""A run's records, answers, questions and timings.

A missing part is None with a sentence in `missing`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from artifacts.run_record import RunReport
from eval_gates.answer_log import ANSWERS, QUESTIONS, parse_answers
from eval_gates.rows import Answer, Question
from eval_gates.stopping import GateRule
from eval_gates.suites.fidelity import TEXTS as CONVERSATIONS
from eval_gates.suites.json_lines import read_rows
from pipeline.core.digest import digest_bytes
from pipeline.core.errors import EvaluationDataError, EvidenceError, StoreError
from pipeline.core.stage import (
    Parameters,
    Result,
    Stage,
    StageRecord,
    StageReference,
    TypedStageRecord,
)
from pipeline.core.store import Store
from pipeline.stages.check_weights import CHECK_WEIGHTS
from pipeline.stages.evaluate import EVALUATE, TEXTS, EvaluateParameters, EvaluateResult
from pipeline.stages.judge import JUDGE
from pipeline.stages.questions import QUESTIONS as ASKED
from recipes.catalog import BASELINE
from recipes.policy import AnySuite, Policy


@dataclass(frozen=True)
class PairedAnswers:
    """Both sides' answers to a suite's questions."""

    baseline: list[Answer]  # in the order of asking
    candidate: list[Answer]  # to the same questions
    questions: dict[str, Question]  # by id, as far as recorded
    suite: AnySuite
    rule: GateRule


class RunEvidence:
    """A run's evidence; `with_conversations` reads private texts, too."""

    def __init__(
        self, report: RunReport, store: Store, *, with_conversations: bool = False
    ) -> None:
        self.report = report
        self.store = store
        self.with_conversations = with_conversations
        self.missing: list[str] = []
        self._answered: dict[tuple[str, str], PairedAnswers | None] = {}
        self._finished = {
            (stage.name, stage.variant): StageReference(stage=stage.stage, key=stage.key)
            for stage in report.stages
            if stage.key is not None and stage.status != "failed"
        }

    @property
    def recipes(self) -> list[str]:
        judged = [variant.recipe for variant in self.report.variants]
        return list(dict.fromkeys([*judged, *(self.report.options.recipes or ())]))

    def record(self, stage: str, variant: str) -> StageRecord | None:
        found = self._finished.get((stage, variant))
        return self._find(found) if found is not None else None

    def place(self, record: StageRecord) -> Path:
        return self.store.stage_folder(record.stage, record.key)

    def kept(
        self, stage: Stage[Parameters, Any, Result], variant: str
    ) -> TypedStageRecord[Parameters, Result] | None:
        """Return the variant's validated record of a stage."""
        return self._read_shape(stage, self.record(stage.name, variant))

    def baseline_bytes(self) -> int | None:
        """Return the unquantized weights' size from any variant."""
        for recipe in self.recipes:
            found = self.kept(CHECK_WEIGHTS, recipe)
            if found is not None and found.result.size_ratio and found.result.weights_bytes:
                return round(found.result.weights_bytes / found.result.size_ratio)
        return None

    def policy(self, recipe: str) -> Policy | None:
        judge = self.kept(JUDGE, recipe)
        return judge.parameters.policy if judge is not None else None

    def find_answers(self, recipe: str, suite: str) -> PairedAnswers | None:
        if (recipe, suite) not in self._answered:
            self._answered[recipe, suite] = self._read_answered(recipe, suite)
        return self._answered[recipe, suite]

    def _read_answered(self, recipe: str, suite: str) -> PairedAnswers | None:
        judge = self.kept(JUDGE, recipe)
        if judge is None or suite not in judge.parameters.policy.suites:
            return None
        policy = judge.parameters.policy
        settings = policy.suites[suite]
        baseline = self._answers(judge.record, f"baseline.{suite}", f"{BASELINE} {suite}")
        candidate = self._answers(judge.record, f"candidate.{suite}", f"{recipe} {suite}")
        if not baseline or not candidate:
            return None
        baseline = baseline[: len(candidate)]
        if [row.id for row in baseline] != [row.id for row in candidate]:
            self._miss(f"{recipe} {suite}: the answers are not to the same questions")
            return None
        asked = self._read_shape(
            ASKED, self._input(judge.record, f"questions.{suite}", f"the questions of {suite}")
        )
        return PairedAnswers(
            baseline=baseline,
            candidate=candidate,
            questions=self._questions(asked.record if asked else None),
            suite=settings,
            rule=judge.parameters.gates[suite],
        )

    def collect_answers(
        self, recipe: str
    ) -> list[tuple[str, TypedStageRecord[EvaluateParameters, EvaluateResult]]]:
        """Return a variant's answers by suite."""
        last: dict[str, str] = {}
        for (name, variant), found in self._finished.items():
            if variant == recipe and found.stage == "evaluate" and not name.endswith(" again"):
                last[name.removeprefix("evaluate ")] = name
        records = [
            (suite, self._read_shape(EVALUATE, self.record(name, recipe)))
            for suite, name in last.items()
        ]
        return [(suite, record) for suite, record in records if record is not None]

    def _answers(self, judge: StageRecord, role: str, words: str) -> list[Answer] | None:
        kept = self._read_shape(EVALUATE, self._input(judge, role, f"the answers of {words}"))
        if kept is None:
            return None
        file = self.place(kept.record) / ANSWERS
        try:
            content = file.read_bytes()
            rows = parse_answers(content)
        except (OSError, ValueError):
            self._miss(f"the answers of {words} cannot be read")
            return None
        if digest_bytes(content) != kept.result.answers_digest:
            self._miss(f"the answers of {words} were changed since they were given")
            return None
        texts = self._private(kept.record, TEXTS)
        return [replace(row, own={**row.own, **texts.get(row.id, {})}) for row in rows]

    def _private(self, record: StageRecord, name: str) -> dict[str, dict[str, Any]]:
        """Return private rows by id, if asked for."""
        file = self.place(record) / name
        if not self.with_conversations or not file.is_file():
            return {}
        try:
            return {row["id"]: row for _, row in read_rows(file)}
        except (EvaluationDataError, KeyError):
            self._miss(f"the conversations of {record.variant} cannot be read")
            return {}

    def _read_shape(
        self, stage: Stage[Parameters, Any, Result], record: StageRecord | None
    ) -> TypedStageRecord[Parameters, Result] | None:
        """Return the record, or None and a note if it is invalid."""
        if record is None:
            return None
        kept = stage.typed(record)
        try:
            _ = kept.parameters, kept.result
        except EvidenceError as error:
            self._miss(f"{record.variant}: {error.message}")
            return None
        return kept

    def _questions(self, asked: StageRecord | None) -> dict[str, Question]:
        if asked is None:
            return {}
        try:
            rows = [row for _, row in read_rows(self.place(asked) / QUESTIONS)]
            chats = self._private(asked, CONVERSATIONS)
            found = [Question.from_row({**row, **chats.get(row["id"], {})}) for row in rows]
            return {each.id: each for each in found}
        except (EvaluationDataError, KeyError, ValueError):
            self._miss(f"the questions of {asked.variant} cannot be read")
            return {}

    def _input(self, judge: StageRecord, role: str, words: str) -> StageRecord | None:
        reference = judge.inputs.get(role)
        found = self._find(reference) if reference is not None else None
        if found is None:
            self._miss(f"{words} are no longer in the store")
        return found

    def _find(self, of: StageReference) -> StageRecord | None:
        try:
            return self.store.find(of.stage, of.key)
        except StoreError as error:
            self._miss(f"{of.stage}: {error.message}")
            return None

    def _miss(self, sentence: str) -> None:
        if sentence not in self.missing:
            self.missing.append(sentence)
