"""Worker: asks one suite's questions until its gate is decided."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from eval_gates.answer_log import AnswerLog
from eval_gates.answer_validity import check_answers
from eval_gates.ask import Client
from eval_gates.clusters import labels_of, partners
from eval_gates.engine_metrics import SpecDecodeCounter
from eval_gates.model_tokenizer import Tokenizer
from eval_gates.rows import Answer, AnsweredQuestion, Question, Reply
from eval_gates.server_tokens import check_server_template, check_server_tokens
from eval_gates.stopping import PLAN, StoppingPlan
from eval_gates.suites.json_lines import read_rows
from eval_gates.suites.suite_kind import Render, kind_named
from prepare.credentials import restore_credentials
from prepare.events import Progress


def run(spec: dict[str, Any], progress: Progress, output: Path) -> dict[str, Any]:
    """Ask until the gate is decided or the questions are exhausted.

    `spec` has name, suite, questions (file), answer_log (file), stopping, concurrency,
    url, model, tokenizer (folder), max_length (tokens), trust_remote_code, asks_once, backwards
    (batches from their end), baseline (files of rows), socket, counters (names), by_chat.
    """
    suite = OpenSuite(spec["suite"], Path(spec["questions"]))
    answer_log = AnswerLog(
        Path(spec["answer_log"]), [question.id for question in suite.questions], writer=1
    )
    stopping = PLAN.validate_python(spec["stopping"])
    url = restore_credentials(spec["url"])
    count = SpecDecodeCounter(url, spec["counters"], spec.get("socket"))
    asker = BatchAsker(spec, suite, progress, stopping.max_questions)
    ask_until_over(answer_log, stopping, asker.ask)
    return {"requests": asker.client.counts, **count.facts()}


def ask_until_over(
    answer_log: AnswerLog, stopping: StoppingPlan, ask: Callable[[range], list[Answer]]
) -> None:
    """Ask in batches, and append each one before the next look."""
    answers = answer_log.rows()
    while batch := stopping.next_batch(answers):
        asked = ask(batch)
        answer_log.append(asked)
        answers += asked


class OpenSuite:
    """A suite with its laid-out questions."""

    def __init__(self, suite: dict[str, Any], file: Path) -> None:
        self._kind = kind_named(suite["kind"])
        self._task = self._kind.task.model_validate(suite)
        self.questions = [Question.from_row(row) for _, row in read_rows(file)]
        self._others = partners(labels_of(self.questions))
        self._kind.open(self._task, self.questions, file.parent)
        self.settings = self._kind.settings(self._task)
        self.is_chat = self._task.prompt_format == "chat"
        self.reads_baseline = self._kind.reads_baseline
        self.takes_thoughts = self._kind.takes_thoughts(self._task)

    def ask(
        self, client: Client, asked: Sequence[Question], baseline: Mapping[str, Answer] | None
    ) -> list[list[Reply]]:
        return self._kind.ask(self._task, client, asked, baseline)

    def render(self, batch: range, template: Render) -> list[Question]:
        """Return the questions of a batch as they are asked."""
        used = template if self.is_chat else None
        return [self._kind.render(self._task, self.questions[n], used) for n in batch]

    def score(
        self,
        batch: range,
        asked: Sequence[Question],
        replies: Sequence[Sequence[Reply]],
        progress: Progress,
    ) -> list[Answer]:
        given = [
            AnsweredQuestion(question, answers, self.questions[self._others[number]])
            for number, question, answers in zip(batch, asked, replies, strict=True)
        ]
        thinks = bool(getattr(self._task, "thinking", None))
        scored = self._kind.score_batch(self._task, given, progress)
        return [
            Answer.of(reply, own, thinks=thinks) for reply, own in zip(given, scored, strict=True)
        ]


class BatchAsker:
    """One suite and one client of the endpoint."""

    def __init__(
        self,
        spec: dict[str, Any],
        suite: OpenSuite,
        progress: Progress,
        limit: int,
        baseline: Mapping[str, Answer] | None = None,
    ) -> None:
        self._name = str(spec["name"])
        self._max_tokens = spec["suite"].get("max_tokens")
        self._suite = suite
        self._progress = progress
        self._limit = limit
        self._done = 0
        self._step = -1 if spec.get("backwards") else 1
        rows: dict[str, dict[str, Any]] = {}
        for file in spec.get("baseline") or ():  # each has other keys of the same answers
            for _, row in read_rows(Path(file)):
                rows.setdefault(row["id"], {}).update(row)
        self._baseline = {id_: Answer.from_row(row) for id_, row in rows.items()} or baseline

        def count(questions: int) -> None:
            self._done += questions
            progress.advance(self._name, min(self._done, limit), limit, "questions")

        self.client = open_client(spec, suite, count, progress)

    def ask(self, batch: range) -> list[Answer]:
        """Return the answers; StageError if nearly all are empty."""
        self._done = batch.start
        asked, replies = self.replies(batch)
        rows = self._suite.score(batch, asked, replies, self._progress)
        # Unusable answers are not stored: the server may be started otherwise.
        check_answers(
            self._name,
            rows,
            max_tokens=self._max_tokens,
            is_complete=False,
            takes_thoughts=self._suite.takes_thoughts,
        )
        self._progress.advance(self._name, batch.stop, self._limit, "questions")
        return rows

    def replies(self, batch: range) -> tuple[list[Question], list[list[Reply]]]:
        asked = self._suite.render(batch, template_of(self.client))
        # The first question alone shows in which form the endpoint can be asked the suite.
        first = 1 if batch.start == 0 else 0
        replies = [
            reply
            for part in (asked[:first], asked[first:])
            if part
            for reply in self._suite.ask(self.client, part[:: self._step], self._baseline)[
                :: self._step
            ]
        ]
        return asked, replies


def template_of(client: Client) -> Render:
    """Return the chat template in lm-eval's form."""

    def render(messages: Sequence[Any], add_generation_prompt: bool = True) -> str:
        return client.render(
            messages,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
        )

    return render


def open_client(
    spec: dict[str, Any], suite: OpenSuite, answered: Callable[[int], None], progress: Progress
) -> Client:
    """Return the endpoint's client; StageError if it reads text otherwise than our tokenizer."""
    arguments = spec["suite"].get("chat_template_kwargs") or {}
    by_chat = bool(spec.get("by_chat"))
    tokenizer = None
    if not by_chat:
        trust = spec["trust_remote_code"]
        tokenizer = Tokenizer.load(spec["tokenizer"], arguments, trust=trust)
        check_server_tokens(spec, tokenizer, progress.note)
        if suite.is_chat and spec.get("recorded"):  # before the first question
            check_server_template(spec, tokenizer, progress.note)
    return Client(
        spec["url"],
        spec["model"],
        suite.settings,
        concurrency=spec["concurrency"],
        max_length=spec["max_length"],
        tokenizer=tokenizer,
        answered=answered,
        note=progress.note,
        by_chat=by_chat,
        template_arguments=arguments,
        is_chat=suite.is_chat,
        socket=spec.get("socket"),
        asks_once=spec["asks_once"],
    )
