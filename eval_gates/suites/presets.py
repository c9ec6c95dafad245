"""Presets of lm-eval's tasks, over a folder's rows or the Hub's: its prompts and its scores."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from pydantic import Field

from eval_gates.limited_call import CallError, LimitError, call_limited
from eval_gates.rows import Question, Reply
from eval_gates.suites.generation import GeneratingKind, generation_settings
from eval_gates.suites.json_lines import FIELDS, read_rows, rows_of_files, text_of, write_rows
from eval_gates.suites.lm_rows import InMemoryDataset, LmRows, load_checkers
from eval_gates.suites.question_source import hub_rows
from eval_gates.suites.suite_kind import QuestionOrder, Read, Render, Row
from pipeline.core.errors import EvaluationDataError
from recipes.policy import Source, Suite

EXAMPLES_FILE = "examples.jsonl"  # next to the questions


class Preset(NamedTuple):
    """One of lm-eval's benchmarks."""

    title: str
    file: str  # lm-eval's YAML file of the task; {subject} is the row's
    file_without_examples: str
    fields: str  # what a row needs
    sample: Row
    filter: str = "none"  # lm-eval's, by which an answer is extracted
    subject: str = ""  # field whose rows share worked examples
    examples: str = ""  # field that a worked example has in addition; empty: the task has its own


class HubSuite(Suite):
    """Settings of the decision on a benchmark of a folder or the Hub."""

    sources: list[Source] = Field(default=["eval-data", "hub"])


class PresetKind(GeneratingKind[Any]):
    """Suite over tasks of lm-eval."""

    preset: ClassVar[Preset]  # set by a subclass
    scores_unrelated = scores_empty = True
    assumed_baseline = 0.7

    @abstractmethod
    def read(self, row: Row, text: Callable[[str], str]) -> Row:
        """Return the row in lm-eval's form, else ValueError; `text` gets a non-empty text."""

    def __init__(self) -> None:
        self._examples: list[Row] = []
        self._tasks: dict[str, LmRows] = {}

    def metric(self, task: Any, laid_out: str | None) -> str:
        return f"exact_match,{self.preset.filter}"

    def value(self, task: Any, results: dict[str, Any]) -> float:
        """Return the score, 0 to 1, from lm-eval's results of one answer."""
        return float(results["exact_match"])

    def choices(self, document: Row) -> list[tuple[str, float]]:
        """Return each choice's text and its score, if answers are chosen."""
        return []

    def expected(self, document: Row) -> str:
        """Return the right answer, for people."""
        return str(document["answer"])

    def document(self, row: Row, place: str) -> Row:
        """Return the row in lm-eval's form, else EvaluationDataError."""
        fields = self.preset.fields
        try:
            return self.read(row, lambda key: text_of(row, key, place, fields))
        except ValueError as error:
            raise EvaluationDataError(str(error), where=place, hint=fields) from error

    def questions(self, task: Any, order: QuestionOrder) -> Read:
        self.prepare_scoring(task)
        found = list(self._rows(order, self.folder_stem, order.source.split))
        if not found:
            raise EvaluationDataError(
                f"there are no questions of {self.folder_stem}",
                where=str(order.folder),
                hint=f"put them in {self.folder_stem}_test.jsonl[.gz] there",
            )
        documents = [self.document(row, place) for place, row in found]
        self._examples = self._read_examples(task, order, set(map(self._subject, documents)))
        write_rows(order.output / EXAMPLES_FILE, self._examples)
        self._try_scores(task, documents, [place for place, _ in found])
        questions = [
            Question(
                f"{task.kind}/{number}",
                self._task(task, document).task.doc_to_text(document),
                group=self._subject(document),
                expected=self.expected(document),
                data={"document": document, **({FIELDS: row} if task.cluster_by else {})},
            )
            for number, (document, (_, row)) in enumerate(zip(documents, found, strict=True))
        ]
        return questions, {"choices": {q.id: self.choices(q.data["document"]) for q in questions}}

    def open(self, task: Any, questions: Sequence[Question], folder: Path) -> None:
        self._examples = [row for _, row in read_rows(folder / EXAMPLES_FILE)]

    def render(self, task: Any, question: Question, template: Render | None) -> Question:
        document = question.data["document"]
        return self._task(task, document).ask(question, document, template)

    def prepare_scoring(self, task: Any) -> None:
        load_checkers()

    def score_text(self, task: Any, question: Question, reply: Reply) -> float:
        document = question.data["document"]
        return self.value(task, self._task(task, document).score_text(document, reply.text))

    def _subject(self, document: Row) -> str:
        return str(document[self.preset.subject]) if self.preset.subject else ""

    def _try_scores(self, task: Any, documents: Sequence[Row], places: Sequence[str]) -> None:
        """Raise EvaluationDataError for a row whose answers lm-eval cannot score."""

        def attempt() -> None:
            for document, place in zip(documents, places, strict=True):
                try:
                    self._task(task, document).score_text(document, "A text of some words.")
                except Exception as error:  # each checker has its own ways to refuse
                    raise EvaluationDataError(
                        f"lm-eval cannot score an answer: {type(error).__name__}: {error}"[:300],
                        where=place,
                        hint=self.preset.fields,
                    ) from error

        for each in documents:  # or the limited process would read all of their YAML files
            self._task(task, each)
        try:
            call_limited(attempt, seconds=600)
        except (LimitError, CallError) as error:
            raise EvaluationDataError(
                f"the questions cannot be checked: {error}", where=places[0].partition(",")[0]
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

    def _read_examples(self, task: Any, order: QuestionOrder, subjects: set[str]) -> list[Row]:
        key, shots = self.preset.examples, _shots(task)
        if not key or not shots:
            return []
        found = list(self._rows(order, str(self.examples_stem), order.source.shots_split))
        examples = [
            {**self.document(row, place), key: text_of(row, key, place, f"each line needs {key}")}
            for place, row in found
        ]
        for subject in sorted(subjects):
            number = sum(self._subject(example) == subject for example in examples)
            if number < shots:
                raise EvaluationDataError(
                    f"{shots} worked examples were asked, but '{subject}' has {number}",
                    where=f"{order.folder or order.source.id}, {self.examples_stem}*.jsonl[.gz]",
                    hint=f"add worked examples there, or set num_fewshot to {number} in the policy",
                )
        return examples

    def _task(self, task: Any, document: Row) -> LmRows:
        subject = self._subject(document)
        name = self.preset.file if _shots(task) else self.preset.file_without_examples
        file = name.format(subject=subject.replace(" ", "_"))
        if file not in self._tasks:
            examples = [row for row in self._examples if self._subject(row) == subject]
            sample = self.preset.sample | ({self.preset.subject: subject} if subject else {})
            # lm-eval needs a document; all are asked through `LmRows.ask`.
            splits = {"test": InMemoryDataset([sample]), "validation": examples}
            self._tasks[file] = LmRows(self._config(task, file), splits)
        return self._tasks[file]

    def _config(self, task: Any, file: str) -> dict[str, Any]:
        from lm_eval import tasks
        from lm_eval.tasks._yaml_loader import load_yaml

        load_checkers()
        config: dict[str, Any] = load_yaml(Path(tasks.__file__).parent / file)
        stops = config["generation_kwargs"]["until"]
        unused = ["tag", "process_docs", "training_split"]
        for key in unused if _shots(task) else [*unused, "fewshot_split", "fewshot_config"]:
            config.pop(key, None)
        filters = [e for e in config.pop("filter_list", []) if e["name"] == self.preset.filter]
        return {
            **config,
            **({"filter_list": filters} if filters else {}),
            "test_split": "test",
            "num_fewshot": _shots(task),
            "generation_kwargs": {**generation_settings(task), "until": stops},
        }


def _shots(task: Any) -> int:
    return int(getattr(task, "num_fewshot", 0))
