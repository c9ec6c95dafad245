"""The suite `lm_eval`: any lm-eval task, by name or as a YAML file."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from eval_gates.suites.answer_rows import choice_fields, common_fields, partners_of
from eval_gates.suites.generation import GeneratedScores, GeneratingTask, generated_rows
from eval_gates.suites.group_scores import GROUP
from eval_gates.suites.known_tasks import known_task
from eval_gates.suites.lm_eval_files import is_task_file, read_task_file
from eval_gates.suites.lm_eval_metrics import Metric, score_of
from eval_gates.suites.lm_eval_task import MEMBER, lay_out, open_task
from eval_gates.suites.question_source import QuestionSource
from eval_gates.suites.suite_kind import (
    QuestionOrder,
    Read,
    Row,
    Rows,
    SourceLookup,
    SuiteKind,
    SuiteSource,
    SuiteTask,
)
from pipeline.core.digest import digest_json
from pipeline.core.errors import EvaluationDataError
from pipeline.core.events import Progress
from recipes.generation import MaxTokens
from recipes.policy import Source, Suite


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


class LmEvalSuite(LmEvalTask, Suite):
    """Any lm-eval task, by name or as a YAML file."""

    sources: list[Source] = Field(default=["hub"])


class LmEval(SuiteKind[LmEvalTask]):
    """The suite `lm_eval`."""

    task, policy = LmEvalTask, LmEvalSuite

    def find_source(self, name: str, suite: Suite, lookup: SourceLookup) -> SuiteSource:
        task = _task_of(suite)
        if not is_task_file(task):
            identity = QuestionSource(kind="hub", task=task, environment=lookup.environment)
            # Clusters are counted once the questions are laid out.
            return SuiteSource(
                identity, questions=None if suite.cluster_by else known_task(task).questions
            )
        file = read_task_file(Path(task))
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

    def count(self, suite: Suite, identity: QuestionSource, folder: Path | None) -> None:
        return

    def local_files(
        self, suite: Suite, identity: QuestionSource, folder: Path | None
    ) -> list[Path]:
        task = _task_of(suite)
        local = read_task_file(Path(task)).data if is_task_file(task) else []
        return [path for path in local if path.name.endswith((".jsonl", ".jsonl.gz"))]

    def read(self, task: LmEvalTask, order: QuestionOrder) -> Read:
        is_file = order.source.kind == "task"
        file = order.folder / Path(task.task).name if order.folder and is_file else None
        laid_out = lay_out(task.model_dump(), file, order.source.revision, order.output)
        return laid_out.rows, laid_out.facts

    def open(self, task: LmEvalTask, questions: Rows, folder: Path) -> SuiteTask:
        opened = open_task(task.model_dump(), questions, folder)
        others = partners_of(questions)
        places = {question["id"]: place for place, question in enumerate(questions)}

        def score_at(place: int, answer: Any, question: str) -> float:
            found = opened.task.score_answer(opened.task.eval_docs[place], answer)
            return score_of(found.get(opened.metric.name), opened.metric, question)

        def score_generated(answer: Any, question: str) -> GeneratedScores:
            here = places[question]
            return GeneratedScores(
                score_at(here, answer, question),
                empty=score_at(here, "", question),
                unrelated=score_at(others[question], answer, question),
            )

        is_generated = opened.task.OUTPUT_TYPE == "generate_until"
        score_rows = (
            partial(generated_rows, task, score_generated)
            if is_generated
            else partial(chosen_rows, opened.metric)
        )

        def rows_of(questions: Rows, samples: Rows, progress: Progress) -> Rows:
            rows = score_rows(questions, samples, progress)
            if len(opened.members) == 1:
                return rows
            return [
                {**row, GROUP: question[MEMBER]}
                for row, question in zip(rows, questions, strict=True)
            ]

        return SuiteTask(opened.task, opened.metric.label, rows_of, opened.requests_per_question)

    def metric(self, task: LmEvalTask, laid_out: str | None) -> str:
        return str(laid_out)

    def output_type(self, task: LmEvalTask) -> None:
        return

    def known_cluster(self, task: LmEvalTask) -> str | None:
        return known_task(task.task).cluster

    def estimate(self, task: LmEvalTask) -> int | None:
        return known_task(task.task).questions

    def title(self, task: LmEvalTask) -> str:
        return task.task

    def prompt(self, task: LmEvalTask, question: Row) -> None:
        return


def _task_of(suite: Suite) -> str:
    return suite.task if isinstance(suite, LmEvalSuite) else ""


def chosen_rows(metric: Metric, questions: Rows, samples: Rows, progress: Progress) -> Rows:
    """Return rows whose `answer` is each choice's likelihood."""
    return [
        {
            **common_fields(question, sample),
            **choice_fields(sample, metric.label),
            "score": score_of(sample.get(metric.name), metric, question["id"]),
        }
        for question, sample in zip(questions, samples, strict=True)
    ]
