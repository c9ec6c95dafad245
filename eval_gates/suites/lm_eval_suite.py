"""The suite `lm_eval`."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from eval_gates.reply_forms import without_added_entities
from eval_gates.rows import AnsweredQuestion, Question, Reply, Score
from eval_gates.suites.generation import GeneratingTask, TextKind
from eval_gates.suites.lm_eval_files import is_task_file, read_task_file
from eval_gates.suites.lm_eval_task import LoadedTask, lay_out, open_task
from eval_gates.suites.sources import QuestionSource, SourceLookup, SuiteSource
from eval_gates.suites.suite_kind import QuestionOrder, Read, Render
from prepare.digest import digest_json
from prepare.errors import EvaluationDataError
from prepare.events import Progress
from recipes.generation import MaxTokens
from recipes.policy import Suite

_FILE = Path(__file__).parents[1] / "data" / "lm_eval_tasks.json"


@cache
def known_tasks() -> dict[str, dict[str, Any]]:
    """Return planning facts of lm-eval's common tasks, by name.

    `questions` is their number, `cluster` a shared field.
    """
    tasks: dict[str, dict[str, Any]] = json.loads(_FILE.read_text(encoding="utf-8"))  # noqa: TID251
    return tasks


class LmEvalTask(GeneratingTask):
    """The documents of a task."""

    kind: Literal["lm_eval"] = "lm_eval"
    task: str = Field(
        min_length=1,
        description="lm-eval's name of a task or a group of tasks, or a task's YAML file",
    )
    metric: str | None = Field(None, description="one of the task's own; its first when absent")
    num_fewshot: int | None = Field(
        None, ge=0, le=1_000, description="few-shot examples; the task's own if absent"
    )
    max_tokens: MaxTokens | None = Field(
        None, description="of a generated answer; absent: the task's own number, else 256"
    )

    @property
    def has_paths(self) -> bool:
        return is_task_file(self.task)


class LmEval(TextKind[LmEvalTask]):
    """Any lm-eval task, by name or as a YAML file."""

    task = LmEvalTask
    sources = ("hub",)
    is_whole_in_bundle = False
    opened: LoadedTask

    def find_source(self, name: str, suite: Suite, lookup: SourceLookup) -> SuiteSource:
        if suite.data is not None:
            return self._own_source(name, suite, lookup)  # refuses it
        task = str(getattr(suite, "task", ""))
        if not is_task_file(task):
            identity = QuestionSource(kind="hub", task=task, environment=lookup.environment)
            known = known_tasks().get(task, {})
            # Clusters are counted after laying out.
            questions = None if suite.cluster_by else known.get("questions")
            return SuiteSource(identity, questions=questions)
        file = read_task_file(suite.path_of(task, f"policy key suites.{name}.task"))
        folder = file.path.parent
        parts = [
            [os.path.relpath(path, folder), lookup.digest_of(path)]
            for path in (*file.code, *file.data)
        ]
        revision = lookup.revision_of(file.dataset) if file.dataset is not None else None
        if file.dataset is not None and revision is None:
            raise EvaluationDataError(
                f"the dataset of the suite '{name}' cannot be reached on the Hub",
                where=f"{file.path}, key dataset_path: {file.dataset}",
                hint="run where the Hub can be reached, or name local files there "
                "(dataset_path: json, dataset_kwargs: {data_files: ...})",
            )
        identity = QuestionSource(
            kind="task", digest=digest_json(parts), dataset=file.dataset, revision=revision
        )
        return SuiteSource(identity, folder)

    def local_files(
        self, suite: Suite, identity: QuestionSource, folder: Path | None
    ) -> list[Path]:
        task = str(getattr(suite, "task", ""))
        if not is_task_file(task):
            return []
        local = read_task_file(suite.path_of(task, "policy key suites.*.task")).data
        return [path for path in local if path.name.endswith((".jsonl", ".jsonl.gz"))]

    def questions(self, task: LmEvalTask, order: QuestionOrder) -> Read:
        is_file = order.source.kind == "task"
        file = order.folder / Path(task.task).name if order.folder and is_file else None
        questions, facts = lay_out(task.model_dump(), file, order.source.revision, order.output)
        if len({question.group for question in questions}) == 1:
            questions = [replace(question, group="") for question in questions]
        return questions, facts

    def open(self, task: LmEvalTask, questions: Sequence[Question], folder: Path) -> None:
        self.opened = open_task(task.model_dump(), folder)
        for question in questions:
            self.opened.find(question)

    def settings(self, task: LmEvalTask) -> dict[str, Any]:
        return {"samples": self.opened.samples}

    def render(self, task: LmEvalTask, question: Question, template: Render | None) -> Question:
        rows, document = self.opened.find(question)
        return rows.ask(question, document, template)

    def score_batch(
        self, task: LmEvalTask, batch: Sequence[AnsweredQuestion], progress: Progress
    ) -> list[Score]:
        if batch and not batch[0].question.continuations:
            self.scores_unrelated = self.scores_empty = True
            return super().score_batch(task, batch, progress)
        return [self.score(task, asked.question, asked.replies) for asked in batch]

    def score(self, task: LmEvalTask, question: Question, replies: Sequence[Reply]) -> Score:
        """Return the score of a choice."""
        rows, document = self.opened.find(question)
        values = rows.score_values(document, replies[0].values)
        score = self.opened.metric.score(values, question.id)
        return Score(0.0 if replies[0].is_unnamed else score)

    def score_text(self, task: LmEvalTask, question: Question, reply: Reply) -> float:
        rows, document = self.opened.find(question)
        text = without_added_entities(reply.text, question.prompt)
        return self.opened.metric.score(rows.score_text(document, text), question.id)

    def metric(self, task: LmEvalTask, laid_out: str | None) -> str:
        return str(laid_out)

    def known_cluster(
        self, task: LmEvalTask, identity: QuestionSource, folder: Path | None
    ) -> str | None:
        return known_tasks().get(task.task, {}).get("cluster")
