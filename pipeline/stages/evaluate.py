"""Asks a served model one suite's questions and stores every answer.

A variant stops at the first planned look that decides its gate. The answer log of a served model
and suite grows, so another margin begins with it. An insensitive gate
(eval_gates/statistics/assay_sensitivity.py) can only fail. `answers.jsonl` has an `Answer`
(eval_gates/rows.py) a line, in order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import Field

from eval_gates.answer_log import ANSWERS, QUESTIONS_FILE, AnswerLog, read_answers
from eval_gates.answer_validity import check_answers, remarks_on
from eval_gates.clusters import labels_of
from eval_gates.engine_metrics import SpecDecodeStats
from eval_gates.question_set import asked_of
from eval_gates.rows import Answer, Question
from eval_gates.statistics.assay_sensitivity import check_sensitivities, insensitive_checks
from eval_gates.stopping import BATCH, PLAN, GateRule, StoppingPlan
from eval_gates.suites.json_lines import read_rows, write_rows
from eval_gates.suites.suite_kind import for_worker, kind_of
from pipeline.serving.served_model import ServedModel, ServerRuntime
from pipeline.serving.serving_arguments import draft_counters
from pipeline.stages import FIRST_TEXTS
from pipeline.stages.attempts import AttemptLedger, Counted
from pipeline.stages.context import StageContext
from pipeline.stages.questions import QUESTIONS
from prepare.digest import digest_bytes, digest_json
from prepare.errors import StageError, StoreError
from prepare.private_files import make_folder
from prepare.process_environment import NetworkAccess
from prepare.record import Record
from prepare.stage import Stage, StageSpec
from prepare.store import Store
from recipes.engines import find_engine
from recipes.policy import AnyTask


class EvaluateParameters(ServedModel):
    """The model, and the questions."""

    suite: AnyTask = Field(description="of the policy")
    environment: str = Field(description="identity of the one that asks")
    max_length: int = Field(description="tokens that a prompt and its answer may have together")
    max_questions: int | None = Field(None, description="questions at most")
    min_values: int = Field(
        0, description="questions or clusters that a gate on costs, or beyond a depth, needs"
    )
    rule: GateRule | None = Field(None, description="None of the baseline")
    is_again: bool = Field(False, description="the baseline is asked a second time")
    measurement_number: int = Field(1, ge=1, description="number of the measurement")

    @property
    def kind(self) -> str:
        return f"{self.suite.kind}{' again' if self.is_again else ''}"


class EvaluateRuntime(ServerRuntime):
    """How they are asked."""

    suite: str = Field("", description="its name in the policy")
    tokenizer: str = Field("", description="folder")
    concurrency: int = 1
    halved: bool = Field(
        False, description="an engine ended over the suite's scored_tokens: half of them are read"
    )
    counted: Counted | None = Field(
        None, description="None of the baseline, and of answers that no gate depends on"
    )


class EvaluateResult(Record):
    """Facts of the answers."""

    metric: str
    n: int = Field(description="questions answered")
    answers_digest: str
    available: int | None = None
    score: float | None = Field(None, description="mean")
    state: str = Field("open", description="pass, fail or open")
    requests: dict[str, int] = Field({}, description="by the way that they were asked")
    spec_decode: SpecDecodeStats | None = Field(
        None, description="by its last worker, where the engine drafts and counts that"
    )


EVALUATE = Stage("evaluate", 19, EvaluateParameters, EvaluateRuntime, EvaluateResult)

# Limits and opponents, on which a question's answer does not depend.
NOT_OF_THE_ANSWER = ("max_questions", "min_values", "rule")
NOT_OF_THE_MODEL = ("baseline", FIRST_TEXTS)
# Unknown for adopted weights, which are compared with the version's own digests.
NOT_ALWAYS_KNOWN = ("auxiliary_files_digest",)


REFERENCE = "reference"
"""Input of a baseline's answers: those of its other start, which they are compared with."""


def compared_role(inputs: Collection[str]) -> str:
    """Return the input with the answers that these are compared with, or ''."""
    return next((role for role in (REFERENCE, "baseline") if role in inputs), "")


FOLDER = "answers"


def answer_log_file(store: Store, key: str) -> Path:
    """Return the path from which the parts' names follow."""
    return store.root / FOLDER / f"{key}.jsonl"


@contextmanager
def open_answer_log(store: Store, answer_log: Path, waits: Callable[[str], None]) -> Iterator[None]:
    """Hold a log exclusively."""
    with store.hold(answer_log.stem, waits):
        make_folder(answer_log.parent)
        yield


TEXTS = "texts.jsonl"
"""Private keys of the rows; no bundle has the file."""

Context = StageContext[EvaluateParameters, EvaluateRuntime]


@dataclass(frozen=True)
class EvaluationRound:
    """Questions, the answers so far, and the stopping rule."""

    ids: list[str]
    available: int
    answer_log_file: Path
    stopping: StoppingPlan

    @property
    def answer_log(self) -> AnswerLog:
        return AnswerLog(self.answer_log_file, self.ids)

    def is_over(self) -> bool:
        """Whether the stored answers suffice."""
        return not self.stopping.next_batch(self.answer_log.rows()[: self.stopping.end])


def is_answered(spec: StageSpec, store: Store) -> bool:
    """Return whether stored answers suffice."""
    return round_of(spec, store).is_over()


def run(context: Context) -> EvaluateResult:
    """Ask until the round is over."""
    suite = context.runtime.suite
    kind = kind_of(context.parameters.suite)
    todo = round_of(context.spec, context.store)
    with open_answer_log(context.store, todo.answer_log_file, context.progress.note):
        if (counted := context.runtime.counted) is not None:  # before any answer
            AttemptLedger(context.store).begin(counted, context.parameters.measurement_number)
        facts = {} if todo.is_over() else ask(context, todo)
        rows = todo.answer_log.rows()
        rows = rows[: todo.stopping.counted(rows)]
    if not rows:
        raise StageError("no question was answered", where=str(todo.answer_log_file))
    takes_thoughts = kind.takes_thoughts(context.parameters.suite)
    check_answers(
        suite,
        rows,
        max_tokens=getattr(context.parameters.suite, "max_tokens", None),
        is_complete=True,
        takes_thoughts=takes_thoughts,
    )
    for remark in remarks_on(rows, takes_thoughts=takes_thoughts):
        context.note(f"{suite}: {remark}")
    if kind.private_keys:
        rows = write_apart(rows, kind.private_keys, context.folder / TEXTS)
    write_rows(context.folder / ANSWERS, [row.to_row() for row in rows])
    laid_out = QUESTIONS.result_of(context.input_record("questions"))
    finding = todo.stopping.decided(rows)
    state = finding.state if finding is not None else "open"
    if finding is not None and state != "open":
        decided = todo.stopping.look_ends()[finding.number - 1]
        context.note(f"{suite}: its mean is decided after {decided} questions ({state})")
    return EvaluateResult(
        **facts,
        metric=kind.metric(context.parameters.suite, laid_out.metric),
        n=len(rows),
        available=todo.available,
        score=sum(row.score for row in rows) / len(rows),
        state=state,
        answers_digest=digest_bytes((context.folder / ANSWERS).read_bytes()),
    )


def ask(context: Context, todo: EvaluationRound) -> dict[str, Any]:
    """Have the worker ask until the round is over; return its facts."""
    kind = kind_of(context.parameters.suite)
    compared = compared_role(context.spec.inputs) if kind.reads_baseline else ""
    if compared and kind.private_keys:
        check_texts(context.input_folder(compared))
    files = [context.input_folder(compared) / name for name in (ANSWERS, TEXTS) if compared]
    return context.run_worker(
        "eval_gates.evaluate_worker",
        {
            **worker_spec(context.spec, context.store),
            "answer_log": str(todo.answer_log_file),
            "stopping": PLAN.dump_python(todo.stopping, mode="json"),
            "baseline": [str(file) for file in files if file.exists()],
        },
        plugins=[for_worker(context.parameters.suite)],
        needs=[] if context.runtime.socket else [NetworkAccess.ENDPOINT],
        stays=True,
    )


def write_apart(rows: list[Answer], private: Collection[str], file: Path) -> list[Answer]:
    """Write the rows' private keys into a file of their own; return the rows without them."""
    write_rows(
        file,
        [
            {"id": row.id, **{key: row.own[key] for key in private if key in row.own}}
            for row in rows
        ],
    )
    return [
        replace(row, own={key: row.own[key] for key in row.own if key not in private})
        for row in rows
    ]


def check_texts(folder: Path) -> None:
    """Raise StoreError unless a stage has the private keys of all of its answers.

    No record has their digest: an arm would be compared with less, or with itself.
    """
    file = folder / TEXTS
    known = {row.get("id") for _, row in read_rows(file)} if file.is_file() else set()
    if known != {answer.id for answer in read_answers(folder)}:
        raise StoreError(
            "the baseline's private texts are not whole any more",
            where=str(file),
            hint="restore the file, or measure the suite again with --remeasure",
        )


def round_of(spec: StageSpec, store: Store) -> EvaluationRound:
    """Return the round; StoreError if an input is missing.

    EvaluationDataError: no question of a part would be asked.
    """
    parameters = EVALUATE.parameters_of(spec)
    questions_file = folder_of(spec, store, "questions") / QUESTIONS_FILE
    questions = [Question.from_row(row) for _, row in read_rows(questions_file)]
    ids = [question.id for question in questions]
    # As the judge groups the answers, which have their questions' labels.
    clusters = labels_of(questions) if any(question.cluster for question in questions) else None
    if not parameters.is_again:
        group = kind_of(parameters.suite).judged_group
        asked_of(questions, parameters.max_questions, group)  # refuses to leave out a part
    max_questions = min(parameters.max_questions or len(ids), len(ids))
    baseline: Sequence[Answer] = ()
    can_pass = True
    if "baseline" in spec.inputs:
        baseline = read_answers(folder_of(spec, store, "baseline"))
        max_questions = min(max_questions, len(baseline))
    if wanted := parameters.rule:
        baseline = wanted.counted(baseline)
        guessing = QUESTIONS.result_of(store.get(spec.inputs["questions"])).guessing
        checks = check_sensitivities(baseline, guessing, wanted.comparison)
        can_pass = not insensitive_checks(checks, wanted.alpha)
    return EvaluationRound(
        ids=ids,
        available=len(ids),
        answer_log_file=answer_log_file(store, answer_log_key(spec, store)),
        stopping=StoppingPlan(
            max_questions,
            # At the end of a batch the server is idle for about one request.
            batch=max(BATCH, 4 * EVALUATE.runtime_of(spec).concurrency),
            rule=parameters.rule,
            baseline=[row.score for row in baseline],
            clusters=clusters,
            can_pass=can_pass,
            min_values=parameters.min_values,
        ),
    )


def answer_log_key(spec: StageSpec, store: Store) -> str:
    """Return the digest of all that an answer depends on; StoreError if an input is missing."""
    known = {}
    for role, reference in spec.inputs.items():
        if role not in NOT_OF_THE_MODEL:
            result = store.get(reference).result
            known[role] = digest_json(
                {k: v for k, v in result.items() if k not in NOT_ALWAYS_KNOWN}
            )
    suite = EVALUATE.parameters_of(spec).suite
    compared = compared_role(spec.inputs)
    if kind_of(suite).reads_baseline and compared:
        known[compared] = store.get(spec.inputs[compared]).result["answers_digest"]
    asked = {key: value for key, value in spec.parameters.items() if key not in NOT_OF_THE_ANSWER}
    return digest_json(
        {"stage": spec.stage, "revision": EVALUATE.revision, **asked, "inputs": known}
    )


def worker_spec(spec: StageSpec, store: Store) -> dict[str, Any]:
    """Return the worker's input."""
    parameters = EVALUATE.parameters_of(spec)
    runtime = EVALUATE.runtime_of(spec)
    endpoint = parameters.endpoint
    suite = parameters.suite.model_dump()
    if runtime.halved:
        suite["scored_tokens"] = max(64, suite["scored_tokens"] // 2)
    return {
        "name": runtime.suite,
        "side": spec.variant,
        "suite": suite,
        "questions": str(folder_of(spec, store, "questions") / QUESTIONS_FILE),
        "concurrency": runtime.concurrency,
        "url": runtime.url,
        "socket": runtime.socket,
        "model": runtime.model,
        "tokenizer": runtime.tokenizer,
        "max_length": parameters.max_length,
        "trust_remote_code": parameters.trust_remote_code,
        "by_chat": endpoint is not None and endpoint.chat,
        # Unknown, and tried, for a user's endpoint.
        "counters": draft_counters(parameters.serving),
        "asks_once": find_engine(parameters.serving.engine).dialect.scores_tokens,
        # Prefix caches and batches change numbers, and the noise floor must show it.
        "backwards": parameters.is_again,
    }


def folder_of(spec: StageSpec, store: Store, role: str) -> Path:
    """Return the earlier stage's outputs."""
    return store.stage_folder(spec.inputs[role].stage, spec.inputs[role].key)
