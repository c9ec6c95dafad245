"""Presets of lm-eval's tasks, over a folder's rows or the Hub's: its prompts and its scores.

A preset says which task, and checks rows.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from eval_gates.limited_call import CallError, LimitError, call_limited
from eval_gates.rows import Question, Reply
from eval_gates.suites.generation import (
    Generating,
    GeneratingKind,
    generation_settings,
)
from eval_gates.suites.json_lines import read_rows, rows_of_files, write_rows
from eval_gates.suites.lm_eval_task import FIELDS
from eval_gates.suites.lm_rows import InMemoryDataset, LmRows
from eval_gates.suites.question_source import hub_rows
from eval_gates.suites.suite_kind import QuestionOrder, Read, Render, Row
from pipeline.core.errors import EvaluationDataError
from recipes.policy import Source, Suite

EXAMPLES_FILE = "examples.jsonl"  # next to the questions


class HubSuite(Suite):
    """Settings of the decision on a benchmark that a folder or the Hub has."""

    sources: list[Source] = Field(default=["eval-data", "hub"])


class PresetKind(GeneratingKind[Generating]):
    """Suite over tasks of lm-eval; a subclass checks documents and names their tasks."""

    filter = "none"  # lm-eval's, by which an answer is extracted
    scores_unrelated = scores_empty = True

    def __init__(self) -> None:
        self._examples: list[Row] = []
        self._tasks: dict[str, LmRows] = {}

    @abstractmethod
    def document(self, row: Row, place: str) -> Row:
        """Return the row in lm-eval's form; EvaluationDataError if it is malformed."""

    @abstractmethod
    def task_file(self, task: Generating, group: str) -> str:
        """Return a group's task: the path of its YAML file in lm-eval's folder of tasks."""

    def value(self, task: Generating, results: dict[str, Any]) -> float:
        """Return the score, 0 to 1, from lm-eval's results of one answer."""
        return float(results["exact_match"])

    def metric(self, task: Generating, laid_out: str | None) -> str:
        return f"exact_match,{self.filter}"

    def check(self, document: Row, place: str) -> None:
        """Raise EvaluationDataError if lm-eval cannot score answers; runs with limits."""

    def example(self, row: Row, place: str) -> Row:
        """Return a worked example in lm-eval's form."""
        return self.document(row, place)

    def shots(self, task: Generating) -> int:
        """Return the number of worked examples in a prompt."""
        return 0

    def group_of(self, document: Row) -> str:
        """Return the document's subject, which shares worked examples; empty without subjects."""
        return ""

    def choices(self, document: Row) -> list[tuple[str, float]]:
        """Return each choice's text and its score; none if answers are not chosen."""
        return []

    def expected(self, document: Row) -> str:
        """Return the right answer, for people."""
        return ""

    def questions(self, task: Generating, order: QuestionOrder) -> Read:
        self.prepare_scoring(task)
        found = list(self._rows(order, self.folder_stem, order.source.split))
        if not found:
            raise EvaluationDataError(
                f"there are no questions of {self.folder_stem}",
                where=str(order.folder),
                hint=f"put them in {self.folder_stem}_test.jsonl[.gz] there",
            )
        documents = [self._checked(row, place) for place, row in found]
        self._examples = self._read_examples(task, order, {self.group_of(d) for d in documents})
        write_rows(order.output / EXAMPLES_FILE, self._examples)
        questions = []
        for number, (document, (_, row)) in enumerate(zip(documents, found, strict=True)):
            group = self.group_of(document)
            fields = {FIELDS: row} if task.cluster_by else {}
            questions.append(
                Question(
                    f"{task.kind}/{number}",
                    self._task(task, group).task.doc_to_text(document),
                    group=group,
                    expected=self.expected(document),
                    data={"document": document, **fields},
                )
            )
        chosen = {each.id: self.choices(each.data["document"]) for each in questions}
        return questions, {"choices": chosen}

    def open(self, task: Generating, questions: Sequence[Question], folder: Path) -> None:
        self._examples = [row for _, row in read_rows(folder / EXAMPLES_FILE)]

    def render(self, task: Generating, question: Question, template: Render | None) -> Question:
        rows = self._task(task, question.group)
        return rows.ask(question, question.data["document"], template)

    def prepare_scoring(self, task: Generating) -> None:
        import lm_eval.api.task  # noqa: F401

    def score_text(self, task: Generating, question: Question, reply: Reply) -> float:
        rows = self._task(task, question.group)
        return self.value(task, rows.score_text(question.data["document"], reply.text))

    def _checked(self, row: Row, place: str) -> Row:
        document = self.document(row, place)
        try:
            call_limited(lambda: self.check(document, place))
        except (LimitError, CallError) as error:
            raise EvaluationDataError(
                f"the question cannot be checked: {error}",
                where=place,
                hint="fix or remove the line",
            ) from error
        return document

    def _rows(
        self, order: QuestionOrder, stem: str, split: str | None
    ) -> Iterator[tuple[str, Row]]:
        if order.source.kind == "folder" and order.folder:
            but_not = [self.examples_stem] if stem == self.folder_stem else []
            yield from rows_of_files(order.folder, stem, but_not=but_not)
        else:
            for number, row in enumerate(hub_rows(order.source, split)):
                yield f"{order.source.id}, split {split}, row {number}", row

    def _read_examples(self, task: Generating, order: QuestionOrder, groups: set[str]) -> list[Row]:
        shots = self.shots(task)
        if self.examples_stem is None or not shots:
            return []
        found = self._rows(order, self.examples_stem, order.source.shots_split)
        examples = [self.example(row, place) for place, row in found]
        for group in sorted(groups):
            number = sum(self.group_of(example) == group for example in examples)
            if number < shots:
                raise EvaluationDataError(
                    f"{shots} worked examples were asked, but '{group}' has {number}",
                    where=f"{order.folder or order.source.id}, {self.examples_stem}*.jsonl[.gz]",
                    hint=f"add worked examples there, or set num_fewshot to {number} in the policy",
                )
        return examples

    def _task(self, task: Generating, group: str) -> LmRows:
        file = self.task_file(task, group)
        if file not in self._tasks:
            examples = [row for row in self._examples if self.group_of(row) == group]
            # lm-eval looks at one document; all are asked through `LmRows.ask`.
            splits = {"test": InMemoryDataset([self.sample(group)]), "validation": examples}
            self._tasks[file] = LmRows(self._config(task, file), splits)
        return self._tasks[file]

    @abstractmethod
    def sample(self, group: str) -> Row:
        """Return a document in lm-eval's form."""

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
            "generation_kwargs": {**generation_settings(task), "until": stops},
        }
