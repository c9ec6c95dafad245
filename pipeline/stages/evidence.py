"""The evidence of a verdict: records and files of the stages that it depends on.

`judge`, `prepare verify`, card, report and registry read the same object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from eval_gates.answer_log import ANSWERS, QUESTIONS_FILE, parse_answers
from eval_gates.rows import Answer, Question
from eval_gates.speed.load_run import LOADS, LoadRun, read_loads
from eval_gates.suites.chat_logs import TEXTS as CONVERSATIONS
from eval_gates.suites.chat_logs import read_chats
from eval_gates.suites.json_lines import read_rows
from pipeline.serving.served_model import ServedModel
from pipeline.stages import CHECKED_WEIGHTS, FIRST_TEXTS, WEIGHTS, answers_role
from pipeline.stages.adopt import ADOPT
from pipeline.stages.check_weights import CHECK_WEIGHTS, CheckWeightsParameters, CheckWeightsResult
from pipeline.stages.evaluate import EVALUATE, TEXTS, EvaluateParameters, EvaluateResult
from pipeline.stages.quantize import QUANTIZE, QuantizeResult, WeightsProvenance
from pipeline.stages.questions import QUESTIONS
from pipeline.stages.recall import RECALL
from pipeline.stages.recorded import ARCHIVE, RECORDED, RecordedParameters, RecordedResult
from pipeline.stages.sanity import SANITY, SanityResult
from pipeline.stages.speed import SPEED, SpeedParameters, SpeedResult
from pipeline.stages.verdict import JUDGE, JudgeParameters, JudgeResult
from prepare.digest import digest_bytes
from prepare.errors import EvidenceError, raise_as
from prepare.stage import (
    Parameters,
    Result,
    Stage,
    StageRecord,
    StageReference,
    TypedStageRecord,
)
from prepare.store import Store
from prepare.untrusted import MAX_ROWS_CHARACTERS, UntrustedLinesError, read_flat_rows, read_regular
from recipes.quantizers.adopted import AdoptedQuantization

Row = dict[str, Any]


class Evidence:
    """Stages by role, with their records and files; read only.

    Roles are those of a judge stage's inputs, such as `candidate.mmlu`. What was read is kept, so
    that it outlives an unpacked bundle. EvidenceError: a record or file is missing or damaged.
    StoreError: a record is damaged.
    """

    def __init__(
        self,
        store: Store,
        references: Mapping[str, StageReference],
        judge: StageRecord | None = None,
    ) -> None:
        self._store = store
        self.references = references
        self._judge = judge
        self.stages = {place_of(judge): judge} if judge is not None else {}  # read so far
        self._answers: dict[str, list[Answer]] = {}  # by role
        self._questions: dict[str, list[Question]] = {}

    @classmethod
    def of_verdict(cls, store: Store, key: str) -> Evidence:
        """Return the evidence of a finished stage `judge`."""
        reference = StageReference(stage=JUDGE.name, key=key)
        judge = cls(store, {}).record_at(reference)
        return cls(store, judge.inputs, judge)

    @classmethod
    def of_variant(cls, store: Store, key: str) -> Evidence:
        """Do as :meth:`of_verdict`, and read all records of the weights and their servers.

        EvidenceError: endpoints without weights were judged.
        """
        evidence = cls.of_verdict(store, key)
        evidence.read_variant()
        return evidence

    def read_variant(self) -> None:
        """Read what :meth:`of_variant` does."""
        _ = self.weights, self.checked_weights, self.sanity
        if self.recorded is None:
            _ = self.baseline_sanity
        _ = self.evaluations, self.speed

    def record(self, role: str) -> StageRecord:
        return self.record_at(self.references[role])

    def record_at(self, reference: StageReference) -> StageRecord:
        """Return the record of any stage that the verdict depends on."""
        record = self.find_at(reference)
        if record is None:
            raise EvidenceError(
                f"the stage '{reference.stage}' that the verdict depends on is gone",
                where=place_of(reference),
                hint="run the model again; what is still there is reused",
            )
        return record

    def find_at(self, reference: StageReference) -> StageRecord | None:
        """Return the record of such a stage, or None if it is gone."""
        place = place_of(reference)
        if place not in self.stages:
            record = self._store.find(reference.stage, reference.key)
            if record is None:
                return None
            self.stages[place] = record
        return self.stages[place]

    def collect(
        self, roots: Sequence[StageRecord], *, may_lack_origins: bool = False
    ) -> list[StageRecord]:
        """Return these stages and all their inputs, sorted by place.

        A store of runs may lack what inputs were made from: then `may_lack_origins`.
        """
        records: dict[str, StageRecord] = {}
        pending = [root.as_reference() for root in roots]
        while pending:
            reference = pending.pop()
            if place_of(reference) in records:
                continue
            record = self.find_at(reference) if may_lack_origins else self.record_at(reference)
            if record is not None:
                records[place_of(reference)] = record
                pending += record.inputs.values()
        return [records[place] for place in sorted(records)]

    def typed(
        self, stage: Stage[Parameters, Any, Result], role: str
    ) -> TypedStageRecord[Parameters, Result]:
        """Return an input's record, of that stage."""
        return stage.typed(self.record(role))

    # --- Files

    def answers(self, role: str) -> list[Answer]:
        """Return answers in the order of asking, without nested values."""
        if role not in self._answers:
            rows = self._rows(self.file(role, ANSWERS))
            self._answers[role] = [Answer.from_row(row) for row in rows]
        return self._answers[role]

    def questions(self, role: str) -> list[Question]:
        if role not in self._questions:
            rows = self._rows(self.file(role, QUESTIONS_FILE))
            self._questions[role] = [Question.from_row(row) for row in rows]
        return self._questions[role]

    def loads(self, role: str) -> list[LoadRun]:
        """Return loads in the order of measuring."""
        path = self.file(role, LOADS)
        kinds = (OSError, ValueError)
        with raise_as(EvidenceError, "a file is gone or damaged", path, errors=kinds):
            return read_loads(path)

    def whole_answers(self, role: str, *, with_texts: bool) -> list[Answer]:
        """Return answers with nested values, and with private texts if they are asked for.

        ValueError: they are not those of the record.
        """
        content = read_regular(self.file(role, ANSWERS), MAX_ROWS_CHARACTERS)
        answers = parse_answers(content)
        record = self.record(role)
        if digest_bytes(content) != FILES[record.stage][1](record):
            raise ValueError("they were changed since they were given")
        texts = _read_private(self.file(role, TEXTS)) if with_texts else {}
        return [replace(row, own={**row.own, **texts.get(row.id, {})}) for row in answers]

    def whole_questions(self, role: str, *, with_texts: bool) -> dict[str, Question]:
        """Return questions by id, and with private conversations if they are asked for."""
        file = self.file(role, CONVERSATIONS)
        laid_out = read_chats(file) if with_texts and file.is_file() else {}
        chats = {name: chat.content for name, chat in laid_out.items()}
        rows = (row for _, row in read_rows(self.file(role, QUESTIONS_FILE)))
        questions = [Question.from_row({**row, **chats.get(row["id"], {})}) for row in rows]
        return {question.id: question for question in questions}

    def file(self, role: str, name: str) -> Path:
        """Return where an input's file is."""
        return self.file_at(self.references[role], name)

    def file_at(self, reference: StageReference | StageRecord, name: str) -> Path:
        """Return where a file of any stage is."""
        return self._store.stage_folder(reference.stage, reference.key) / name

    def _rows(self, path: Path) -> Iterator[Row]:
        kinds = (OSError, UntrustedLinesError)
        with raise_as(EvidenceError, "a file is gone or damaged", path, errors=kinds):
            yield from read_flat_rows(path)

    # --- Records of a finished verdict

    @property
    def judge(self) -> TypedStageRecord[JudgeParameters, JudgeResult]:
        assert self._judge is not None, "the verdict is not there yet"
        return JUDGE.typed(self._judge)

    @cached_property
    def evaluations(self) -> Mapping[str, TypedStageRecord[EvaluateParameters, EvaluateResult]]:
        """The candidate's, by suite."""
        suites = self.judge.parameters.policy.suites
        return {suite: self.typed(EVALUATE, answers_role("candidate", suite)) for suite in suites}

    @cached_property
    def speed(self) -> Mapping[str, TypedStageRecord[SpeedParameters, SpeedResult]]:
        """Measurements of speed, by role."""
        return {
            role: self.typed(SPEED, role)
            for role, reference in self.references.items()
            if reference.stage == SPEED.name
        }

    @cached_property
    def checked_weights(self) -> TypedStageRecord[CheckWeightsParameters, CheckWeightsResult]:
        candidate = self._first_evaluation("candidate")
        if CHECKED_WEIGHTS not in candidate.inputs:
            raise EvidenceError(
                "this verdict is on endpoints that someone else serves: there are no weights",
                where=f"stage judge {self.judge.record.key}",
                hint="`prepare model CHECKPOINT` makes variants that can be bundled",
            )
        return CHECK_WEIGHTS.typed(self.record_at(candidate.inputs[CHECKED_WEIGHTS]))

    @cached_property
    def weights(self) -> TypedStageRecord[WeightsProvenance, QuantizeResult]:
        """The stage that made the weights, or adopted them."""
        made = self.record_at(self.checked_weights.record.inputs[WEIGHTS])
        return ADOPT.typed(made) if made.stage == ADOPT.name else QUANTIZE.typed(made)

    @cached_property
    def sanity(self) -> TypedStageRecord[ServedModel, SanityResult]:
        """The variant's server."""
        return self._sanity_of("candidate")

    @cached_property
    def baseline_sanity(self) -> TypedStageRecord[ServedModel, SanityResult]:
        return self._sanity_of("baseline")

    @property
    def recorded(self) -> TypedStageRecord[RecordedParameters, RecordedResult] | None:
        """The baseline, where it is answers on record."""
        named = RECORDED.name in self.references
        return self.typed(RECORDED, RECORDED.name) if named else None

    @property
    def trust_remote_code(self) -> bool:
        return self.sanity.parameters.trust_remote_code

    @property
    def made_by(self) -> str:
        """Maker of the weights; '' if a recipe made them."""
        quantization = self.weights.parameters.quantization
        return quantization.made_by if isinstance(quantization, AdoptedQuantization) else ""

    def _first_evaluation(self, side: str) -> StageRecord:
        suite = next(iter(self.judge.parameters.policy.suites))
        return self.record(answers_role(side, suite))

    def _sanity_of(self, side: str) -> TypedStageRecord[ServedModel, SanityResult]:
        return SANITY.typed(self.record_at(self._first_evaluation(side).inputs[FIRST_TEXTS]))


# By stage: its file, and the digest of it that the record has.
FILES: Mapping[str, tuple[str, Callable[[StageRecord], str]]] = {
    EVALUATE.name: (ANSWERS, lambda record: EVALUATE.result_of(record).answers_digest),
    QUESTIONS.name: (QUESTIONS_FILE, lambda record: QUESTIONS.result_of(record).questions_digest),
    RECALL.name: (ANSWERS, lambda record: RECALL.result_of(record).answers_digest),
    RECORDED.name: (ARCHIVE, lambda record: RECORDED.result_of(record).archive_digest),
    SPEED.name: (LOADS, lambda record: SPEED.result_of(record).loads_digest),
}


def place_of(reference: StageReference | StageRecord) -> str:
    """Return a stage's place in a store or bundle."""
    return f"stages/{reference.stage}/{reference.key}"


def _read_private(file: Path) -> dict[str, Row]:
    """Return private rows by id, if there are any."""
    return {row["id"]: row for _, row in read_rows(file)} if file.is_file() else {}
