"""Presets of lm-eval's benchmarks: its prompts and scores over rows of a folder or the Hub.

An entry point names each as an attribute of this module.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from string import ascii_uppercase
from typing import Any, ClassVar, Literal

from pydantic import Field, create_model

from eval_gates.rows import Question, Reply
from eval_gates.suites.generation import GeneratingTask, TextKind, generation_settings
from eval_gates.suites.json_lines import (
    FIELDS,
    TEXT,
    check_row,
    check_schema,
    read_rows,
    write_rows,
)
from eval_gates.suites.lm_rows import InMemoryDataset, LmRows, load_checkers
from eval_gates.suites.sources import HubQuestions, QuestionSource, Row
from eval_gates.suites.suite_kind import QuestionOrder, Read, Render
from eval_gates.suites.word_tokens import is_mostly_unspaced
from prepare.errors import EvaluationDataError
from prepare.limited_call import CallError, call_limited
from recipes.generation import MaxTokens

EXAMPLES_FILE = "examples.jsonl"  # next to the questions; in a bundle, too


@dataclass(frozen=True)
class Preset:
    """One entry of `presets.yaml`."""

    title: str
    summary: str
    file: str
    row: Row
    hint: str  # what a row needs
    expected: str  # field with the right answer
    sample: Row  # document that lm-eval needs to begin
    metrics: dict[str, str]  # lm-eval's, by the policy's name
    hub: dict[str, str]
    size: int
    max_tokens: int
    file_without_examples: str = ""
    filter: str = "none"  # lm-eval's, by which an answer is extracted
    num_fewshot: int | None = None  # most worked examples, the default; None: it takes no number
    about_fewshot: str = ""
    about_metric: str = ""
    subject: str = ""  # field whose rows share worked examples
    choices: str = ""
    examples: str = ""  # empty: the task has its own worked examples
    examples_stem: str | None = None
    same_length: tuple[str, ...] = ()
    spaced: str = ""  # field of texts whose words its checkers find by spaces
    typical_change: dict[str, float] = field(default_factory=dict)  # by metric
    guessing: float = 0.0
    assumed_baseline: float = 0.7

    def letter_scores(self, document: Row) -> list[tuple[str, float]]:
        """Return each letter and its score."""
        letters = ascii_uppercase[: len(document[self.choices])] if self.choices else ""
        return [(letter, float(letter == document[self.expected])) for letter in letters]

    def right_answer(self, document: Row) -> str:
        """Return the answer for people; ValueError if it is no choice."""
        answer = document[self.expected]
        if self.choices:
            options = document[self.choices]
            if ascii_uppercase.index(answer) >= len(options):
                raise ValueError(f"'{self.expected}' names none of '{self.choices}'")
            return f"{answer}. {options[ascii_uppercase.index(answer)]}"
        return "\n".join(answer) if isinstance(answer, list) else str(answer)

    def document(self, row: Row, place: str) -> Row:
        """Return the row in lm-eval's form, else EvaluationDataError."""
        check_schema(row, self.row, place, self.hint)
        keys = self.row["properties"]
        document = {key: row.get(key, schema.get("default")) for key, schema in keys.items()}
        try:
            if len({len(document[key]) for key in self.same_length}) > 1:
                raise ValueError(f"{' and '.join(self.same_length)} differ in length")
            self.right_answer(document)
            if self.spaced and is_mostly_unspaced([document[self.spaced]]):
                raise ValueError(f"the checkers count words, and '{self.spaced}' has no spaces")
        except ValueError as error:
            raise EvaluationDataError(str(error), where=place, hint=self.hint) from error
        return document


class PresetKind(TextKind[Any]):
    """Suite over tasks of lm-eval."""

    preset: ClassVar[Preset]  # set by a subclass
    scores_unrelated = scores_empty = True
    sources = ("eval-data", "hub")

    def __init__(self) -> None:
        self._examples: list[Row] = []
        self._tasks: dict[str, LmRows] = {}

    def metric(self, task: Any, laid_out: str | None) -> str:
        name = self.preset.metrics[_metric(self.preset, task)]
        return name if self.preset.filter == "none" else f"{name},{self.preset.filter}"

    def typical_change(self, task: Any) -> float:
        changes = self.preset.typical_change
        return changes.get(_metric(self.preset, task)) or super().typical_change(task)

    def known_questions(self, task: Any, order: QuestionOrder) -> list[Question]:
        """Return them without lm-eval's words; its checkers, too, are in `evaluate` only."""
        rows = self.read(order.source, order.folder)
        documents = [self.preset.document(row, place) for place, row in rows]
        self._read_examples(task, order, set(map(self._subject, documents)))
        return [
            Question(f"{task.kind}/{number}", json.dumps(document, sort_keys=True))
            for number, document in enumerate(documents)
        ]

    def questions(self, task: Any, order: QuestionOrder) -> Read:
        self.prepare_scoring(task)
        rows = self.read(order.source, order.folder)
        documents = [self.preset.document(row, place) for place, row in rows]
        self._examples = self._read_examples(task, order, set(map(self._subject, documents)))
        write_rows(order.output / EXAMPLES_FILE, self._examples)
        self._try_scores(task, documents, [place for place, _ in rows])
        questions = [
            Question(
                f"{task.kind}/{number}",
                self._task(task, document).task.doc_to_text(document),
                group=self._subject(document),
                expected=self.preset.right_answer(document),
                data={"document": document, **({FIELDS: row} if task.reads_fields else {})},
            )
            for number, (document, (_, row)) in enumerate(zip(documents, rows, strict=True))
        ]
        choices = {
            question.id: self.preset.letter_scores(question.data["document"])
            for question in questions
        }
        return questions, {"choices": choices}

    def open(self, task: Any, questions: Sequence[Question], folder: Path) -> None:
        self._examples = [row for _, row in read_rows(folder / EXAMPLES_FILE)]

    def render(self, task: Any, question: Question, template: Render | None) -> Question:
        document = question.data["document"]
        return self._task(task, document).ask(question, document, template)

    def prepare_scoring(self, task: Any) -> None:
        load_checkers()

    def score_text(self, task: Any, question: Question, reply: Reply) -> float:
        document = question.data["document"]
        results = self._task(task, document).score_text(document, reply.text)
        score = results[self.preset.metrics[_metric(self.preset, task)]]
        return sum(score) / len(score) if isinstance(score, list) else float(score)

    def _subject(self, document: Row) -> str:
        return str(document[self.preset.subject]) if self.preset.subject else ""

    def _try_scores(self, task: Any, documents: Sequence[Row], places: Sequence[str]) -> None:
        """Raise EvaluationDataError for a row that lm-eval cannot score."""

        def attempt() -> None:
            for document, place in zip(documents, places, strict=True):
                try:
                    self._task(task, document).score_text(document, "A text of some words.")
                except ImportError:
                    raise
                except Exception as error:  # each checker has its own ways to refuse
                    raise EvaluationDataError(
                        f"lm-eval cannot score an answer: {type(error).__name__}: {error}"[:300],
                        where=place,
                        hint=self.preset.hint,
                    ) from error

        for document in documents:  # or the limited process would read all of their YAML files
            self._task(task, document)
        try:
            call_limited(attempt, seconds=600)
        except CallError as error:
            raise EvaluationDataError(
                f"the questions cannot be checked: {error}", where=places[0].partition(",")[0]
            ) from error

    def _read_examples(self, task: Any, order: QuestionOrder, subjects: set[str]) -> list[Row]:
        key = self.preset.examples
        shots = _shots(task)
        if not key or not shots:
            return []
        rows = self.read(order.source, order.folder, examples=True)
        examples = []
        for place, row in rows:
            check_row(row, place, f"each line needs {key}", **{key: TEXT})
            examples.append({**self.preset.document(row, place), key: row[key]})
        for subject in sorted(subjects):
            number = sum(self._subject(example) == subject for example in examples)
            if number < shots:
                files = f"{self.examples_stem}*.jsonl[.gz]"
                more = "add worked examples there"
                if order.folder is not None and order.folder.is_file():
                    more = f"name with the key 'data' the file's folder, with {files} in it"
                raise EvaluationDataError(
                    f"{shots} worked examples were asked, but '{subject}' has {number}",
                    where=f"{order.folder or order.source.id}, {files}",
                    hint=f"{more}, or set num_fewshot to {number} in the policy",
                )
        return examples

    def _task(self, task: Any, document: Row) -> LmRows:
        preset = self.preset
        subject = self._subject(document)
        name = preset.file if _shots(task) else preset.file_without_examples or preset.file
        file = name.format(subject=subject.replace(" ", "_"))
        if file not in self._tasks:
            examples = [row for row in self._examples if self._subject(row) == subject]
            sample = preset.sample | ({preset.subject: subject} if subject else {})
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


def _metric(preset: Preset, task: Any) -> str:
    return str(getattr(task, "metric", next(iter(preset.metrics))))


@cache
def presets() -> dict[str, Preset]:
    """Return the presets by kind."""
    from prepare.untrusted_yaml import read_yaml_file

    listed = read_yaml_file(Path(__file__).with_suffix(".yaml"))
    return {name: Preset(**entry) for name, entry in listed.items()}


@cache
def _kind(name: str) -> type[PresetKind]:
    preset = presets()[name]
    title = "".join(map(str.capitalize, name.split("_")))
    keys: dict[str, Any] = {
        "kind": (Literal[name], name),
        "max_tokens": (MaxTokens, preset.max_tokens),
    }
    if (most := preset.num_fewshot) is not None:
        about = preset.about_fewshot
        keys["num_fewshot"] = (int, Field(most, ge=0, le=most, description=about))
    if len(preset.metrics) > 1:
        metrics: Any = tuple(preset.metrics)
        keys["metric"] = (Literal[metrics], Field(metrics[0], description=preset.about_metric))
    task = create_model(f"{title}Task", __base__=GeneratingTask, __module__=__name__, **keys)
    hub = HubQuestions(QuestionSource(kind="hub", **preset.hub), preset.size)
    facts = {
        "__doc__": preset.summary,
        "__module__": __name__,
        "task": task,
        "preset": preset,
        "folder_stem": name,
        "examples_stem": preset.examples_stem,
        "guessing": preset.guessing,
        "assumed_baseline": preset.assumed_baseline,
        "hub": hub,
        "benchmark": hub.benchmark(preset.title),
    }
    return type(name, (PresetKind,), facts)


def __getattr__(name: str) -> type[PresetKind]:
    if name not in presets():
        raise AttributeError(f"presets.yaml has no {name}")
    return _kind(name)
