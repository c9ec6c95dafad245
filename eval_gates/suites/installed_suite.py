"""Suites that ask and score as tasks of the installed lm-eval do, over their own documents."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from pydantic import Field

from eval_gates.limited_call import CallError, LimitError, call_limited
from eval_gates.suites.answer_rows import partners_of
from eval_gates.suites.fixed_task import InMemoryDataset, fixed_task
from eval_gates.suites.generation import (
    GeneratedScores,
    GeneratingTask,
    generated_rows,
    request_settings,
)
from eval_gates.suites.group_scores import GROUP
from eval_gates.suites.joined_task import join_tasks
from eval_gates.suites.json_lines import read_rows, rows_of_files, write_rows
from eval_gates.suites.lm_eval_task import FIELDS
from eval_gates.suites.question_source import hub_rows
from eval_gates.suites.suite_kind import QuestionOrder, Read, Row, Rows, SuiteKind, SuiteTask
from pipeline.core.errors import EvaluationDataError
from pipeline.core.events import Progress
from recipes.policy import Source, Suite

Generating = TypeVar("Generating", bound=GeneratingTask)

EXAMPLES_FILE = "examples.jsonl"  # next to the questions


class HubSuite(Suite):
    """Settings of the decision on a benchmark that a folder or the Hub has."""

    sources: list[Source] = Field(default=["eval-data", "hub"])


class InstalledSuite(SuiteKind[Generating]):
    """Suite over tasks of lm-eval; a subclass checks documents and names their tasks."""

    filter = "none"  # lm-eval's, by which an answer is extracted
    scores_unrelated = True

    @abstractmethod
    def document(self, row: Row, place: str) -> Row:
        """Return the row in lm-eval's form; EvaluationDataError if it is malformed."""

    @abstractmethod
    def task_file(self, task: Generating, document: Row) -> str:
        """Return the document's task: the path of its YAML file in lm-eval's folder of tasks."""

    def score(self, task: Generating, results: dict[str, Any]) -> float:
        """Return the score, 0 to 1, from lm-eval's results of one answer."""
        return float(results["exact_match"])

    def metric(self, task: Generating, laid_out: str | None) -> str:
        return f"exact_match,{self.filter}"

    def check(self, document: Row, place: str) -> None:
        """Raise EvaluationDataError if lm-eval cannot score answers; runs in `evaluate`."""

    def example(self, row: Row, place: str) -> Row:
        """Return a worked example in lm-eval's form."""
        return self.document(row, place)

    def shots(self, task: Generating) -> int:
        """Return the number of worked examples in a prompt."""
        return 0

    def group_of(self, document: Row) -> str:
        """Return the document's subject, which shares worked examples; empty without subjects."""
        return ""

    def read(self, task: Generating, order: QuestionOrder) -> Read:
        rows = list(self._documents(task, order))
        if not rows:
            raise EvaluationDataError(
                f"there are no questions of {self.folder_stem}",
                where=str(order.folder),
                hint=f"put them in {self.folder_stem}_test.jsonl[.gz] there",
            )
        examples = self._examples(task, order, rows)
        write_rows(order.output / EXAMPLES_FILE, examples)
        numbered = [{"id": f"{task.kind}/{n}", **row} for n, row in enumerate(rows)]
        asked = self._lm_eval_task(task, numbered, examples)
        return [
            {**row, "request": asked.doc_to_text(document)}
            for row, document in zip(numbered, asked.eval_docs, strict=True)
        ], self.facts(numbered)

    def load_graders(self) -> None:
        """Import what :meth:`check` needs: each check runs in a child with a limit of CPU time."""

    def facts(self, rows: Rows) -> dict[str, Any]:
        """Return facts for the record."""
        return {}

    def _documents(self, task: Generating, order: QuestionOrder) -> Iterator[Row]:
        self.load_graders()
        for place, row in self._rows(order, self.folder_stem, order.source.split):
            document = self.document(row, place)
            self._check_limited(document, place)
            yield {**document, FIELDS: row} if task.cluster_by else document

    def _check_limited(self, document: Row, place: str) -> None:
        try:
            call_limited(lambda: self.check(document, place))
        except (LimitError, CallError) as error:
            raise EvaluationDataError(
                f"the question cannot be checked: {error}",
                where=place,
                hint="fix or remove the line",
            ) from error

    def _rows(
        self, order: QuestionOrder, stem: str, split: str | None
    ) -> Iterator[tuple[str, Row]]:
        if order.source.kind == "folder" and order.folder:
            but_not = [self.examples_stem] if stem == self.folder_stem else []
            yield from rows_of_files(order.folder, stem, but_not=but_not)
        else:
            for number, row in enumerate(hub_rows(order.source, split)):
                yield f"{order.source.id}, split {split}, row {number}", row

    def _examples(self, task: Generating, order: QuestionOrder, rows: Rows) -> Rows:
        shots = self.shots(task)
        if self.examples_stem is None or not shots:
            return []
        found = self._rows(order, self.examples_stem, order.source.shots_split)
        examples = [self.example(row, place) for place, row in found]
        for group in sorted({self.group_of(row) for row in rows}):
            number = sum(self.group_of(example) == group for example in examples)
            if number < shots:
                raise EvaluationDataError(
                    f"{shots} worked examples were asked, but '{group}' has {number}",
                    where=f"{order.folder or order.source.id}, {self.examples_stem}*.jsonl[.gz]",
                    hint=f"add worked examples there, or set num_fewshot to {number} in the policy",
                )
        return examples

    def open(self, task: Generating, questions: Rows, folder: Path) -> SuiteTask:
        examples = [row for _, row in read_rows(folder / EXAMPLES_FILE)]
        asked = self._lm_eval_task(task, questions, examples)
        others = partners_of(questions)
        places = {name: place for place, name in enumerate(others)}

        def score_at(place: int, answer: str) -> float:
            return self.score(task, asked.score_answer(asked.eval_docs[place], answer))

        def score(answer: str, question: str) -> GeneratedScores:
            return GeneratedScores(
                score_at(places[question], answer),
                empty=score_at(places[question], ""),
                unrelated=score_at(others[question], answer),
            )

        def rows_of(questions: Rows, samples: Rows, progress: Progress) -> Rows:
            rows = generated_rows(task, score, questions, samples, progress)
            groups = [self.group_of(question) for question in questions]
            return [
                {**row, GROUP: group} if group else row
                for row, group in zip(rows, groups, strict=True)
            ]

        return SuiteTask(asked, self.metric(task, None), rows_of, task.samples)

    def _lm_eval_task(self, task: Generating, questions: Rows, examples: Rows) -> Any:
        by_member: dict[str, Rows] = {}
        order = []
        for question in questions:
            rows = by_member.setdefault(self.task_file(task, question), [])
            order.append((self.task_file(task, question), len(rows)))
            rows.append(question)
        members = {
            file: fixed_task(
                self._config(task, file),
                {
                    "test": InMemoryDataset(rows),
                    "validation": [
                        row for row in examples if self.group_of(row) == self.group_of(rows[0])
                    ],
                },
                samples=task.samples,
            )
            for file, rows in by_member.items()
        }
        return join_tasks(members, order)

    def _config(self, task: Generating, file: str) -> dict[str, Any]:
        from lm_eval import tasks
        from lm_eval.tasks._yaml_loader import load_yaml

        config: dict[str, Any] = load_yaml(Path(tasks.__file__).parent / file)
        stops = config["generation_kwargs"]["until"]
        for key in ("tag", "process_docs", "training_split"):
            config.pop(key, None)
        if not self.shots(task):
            config.pop("fewshot_split", None)
            config.pop("fewshot_config", None)
        filters = [each for each in config.pop("filter_list", []) if each["name"] == self.filter]
        return {
            **config,
            **({"filter_list": filters} if filters else {}),
            "test_split": "test",
            "num_fewshot": self.shots(task),
            "generation_kwargs": request_settings(task, stops),
        }
