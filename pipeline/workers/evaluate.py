"""Worker: asks an endpoint one suite's questions in batches, until its gate is decided.

Runs in the `evaluate` environment. Every batch goes through lm-eval; its answers are appended to
the answer log before the next look, so a kill loses one batch at most.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from eval_gates.answer_log import AnswerLog
from eval_gates.answer_validity import check_answers
from eval_gates.stopping import StoppingPlan, read_stopping
from eval_gates.suites.chat_form import ChatForm, count_against
from eval_gates.suites.json_lines import read_rows
from eval_gates.suites.suite_kind import SuiteTask, kind_named
from pipeline.core.credentials import restore_credentials
from pipeline.core.errors import StageError
from pipeline.core.events import Progress
from pipeline.workers.engine_metrics import SpecDecodeCounter
from pipeline.workers.unix_socket import connect_through

Rows = list[dict[str, Any]]
TASK = "suite"  # lm-eval wants a name for it
REQUEST_TIMEOUT_SECONDS = 1800


def run(spec: dict[str, Any], progress: Progress, output: Path) -> dict[str, Any]:
    """Ask until the gate is decided, the questions are exhausted or the time is over.

    Args:
        spec: name and suite, questions (file), book (file of the answer log), stopping,
            concurrency, url, model, tokenizer (folder), max_length (tokens), trust_remote_code,
            asks_once (try one request a question), socket (of a server that has one), counters (the
            engine's names, if it drafts); for an endpoint that is asked by its chat API: chat (its
            form) and side.

    Raises:
        StageError: the server did not answer a question, or a prompt does not fit.
    """
    connect_through(spec.get("socket"))  # before lm-eval is imported
    questions = [row for _, row in read_rows(Path(spec["questions"]))]
    ids = [row["id"] for row in questions]
    book = AnswerLog(Path(spec["book"]), ids, writer=1)
    stopping = read_stopping(spec["stopping"])
    count = SpecDecodeCounter(restore_credentials(spec["url"]), spec["counters"])
    asker = EvalClient(spec, questions, progress, stopping.max_questions)
    ask_until_over(book, stopping, asker.ask)
    return {**asker.facts(), **count.facts()}


def ask_until_over(book: AnswerLog, stopping: StoppingPlan, ask: Callable[[range], Rows]) -> None:
    """Ask batch after batch; append each one's answers before the next look."""
    answers = book.rows()
    while batch := stopping.next_batch(answers):
        asked = ask(batch)
        book.append(asked)
        answers += asked


class EvalClient:
    """One lm-eval task and one client of the endpoint, for all batches."""

    def __init__(self, spec: dict[str, Any], questions: Rows, progress: Progress, limit: int):
        self._spec = spec
        self._questions = questions
        self._progress = progress
        self._limit = limit
        self._suite = open_suite(spec)
        self._requests = 0
        self._before = 0
        self._model = client(spec, self._count_answers, progress)

    def ask(self, batch: range) -> Rows:
        """Return the answers to these questions, in their order.

        Raises:
            StageError: nearly all of them are none.
        """
        from lm_eval.evaluator import evaluate

        self._before, self._requests = batch.start, 0
        results = evaluate(
            lm=self._model,
            task_dict={TASK: self._suite.task},
            samples={TASK: list(batch)},
            log_samples=True,
            bootstrap_iters=0,  # the gates have statistics of their own
            apply_chat_template=self._spec["suite"].get("prompt_format") == "chat",
            fewshot_as_multiturn=True,  # as lm-eval's own command has it
            confirm_run_unsafe_code=False,
        )
        (samples,) = results["samples"].values()
        ordered = sorted(samples, key=lambda sample: int(sample["doc_id"]))
        if [int(sample["doc_id"]) for sample in ordered] != list(batch):
            raise StageError(f"{len(ordered)} answers to {len(batch)} questions")
        questions = [self._questions[number] for number in batch]
        rows: Rows = self._suite.rows_of(questions, ordered, self._progress)
        if self._spec.get("chat"):
            rows = count_against(rows, self._spec["side"])
        # Answers that are none are not kept: the server may be started otherwise.
        limit = self._spec["suite"].get("max_tokens")
        check_answers(self._task, rows, max_tokens=limit, is_complete=False)
        self._progress.advance(self._task, batch.stop, self._limit, "questions")
        return rows

    def facts(self) -> dict[str, Any]:
        """Return facts for the record."""
        return {"requests": self._model.statistics()}

    @property
    def _task(self) -> str:
        """Name of the progress: the policy's name of the suite."""
        return str(self._spec.get("name", self._spec["suite"]["kind"]))

    def _count_answers(self, requests: int) -> None:
        self._requests += requests
        questions = self._requests // self._suite.requests_per_question
        self._progress.advance(
            self._task,
            min(self._before + questions, self._limit),
            self._limit,
            "questions",
        )


def open_suite(spec: dict[str, Any]) -> SuiteTask:
    """Return the suite's task over its questions.

    Args:
        spec: suite (what an answer depends on) and questions (the stage's file).

    Raises:
        EvaluationDataError: an lm-eval task's documents differ from those of the stage.
        SandboxError: programs cannot be isolated as the policy requires.
    """
    file = Path(spec["questions"])
    kind = kind_named(spec["suite"]["kind"])
    questions = [row for _, row in read_rows(file)]
    return kind.open(kind.task.model_validate(spec["suite"]), questions, file.parent)


def client(spec: dict[str, Any], answered: Callable[[int], None], progress: Progress) -> Any:
    """Return the lm-eval model that asks the endpoint."""
    from eval_gates.suites.chat_model import chat_model
    from eval_gates.suites.completions_model import completions_model

    common: dict[str, Any] = {
        "url": restore_credentials(spec["url"]),
        "model": spec["model"],
        "concurrency": spec["concurrency"],
        "timeout_seconds": REQUEST_TIMEOUT_SECONDS,
        "answered": answered,
        "template_arguments": spec["suite"].get("chat_template_kwargs"),
    }
    if spec.get("chat"):
        return chat_model(form=ChatForm.model_validate(spec["chat"]), **common)
    return completions_model(
        tokenizer=spec["tokenizer"],
        trust_remote_code=spec["trust_remote_code"],
        max_length=spec["max_length"],
        note=progress.note,
        asks_once=spec["asks_once"],
        **common,
    )
