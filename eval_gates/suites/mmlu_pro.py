"""MMLU-Pro (Wang et al. 2024): 12,032 questions of 14 subjects with up to ten options.

The model reasons and then writes its answer; prompts and scores are those of lm-eval's tasks
`mmlu_pro_*`.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from eval_gates.suites.generation import GeneratingTask
from eval_gates.suites.json_lines import text_of
from eval_gates.suites.presets import HubSuite, PresetKind
from eval_gates.suites.question_source import QuestionSource
from eval_gates.suites.suite_kind import HubQuestions, Row
from pipeline.core.errors import EvaluationDataError
from recipes.generation import MaxTokens

LETTERS = "ABCDEFGHIJ"
SUBJECTS = (
    "biology",
    "business",
    "chemistry",
    "computer science",
    "economics",
    "engineering",
    "health",
    "history",
    "law",
    "math",
    "other",
    "philosophy",
    "physics",
    "psychology",
)
_FIELDS = (
    "each line needs question, options (2 to 10 texts), answer (a letter A to J) or answer_index "
    "(0 to 9), and category"
)


class MmluProTask(GeneratingTask):
    """Questions with up to ten options."""

    kind: Literal["mmlu_pro"] = "mmlu_pro"
    num_fewshot: int = Field(
        5, ge=0, le=5, description="worked examples of the question's subject, with their reasoning"
    )
    max_tokens: MaxTokens = 2048


class MmluProSuite(MmluProTask, HubSuite):
    """Questions of 14 subjects, answered after reasoning; one population."""


class MmluPro(PresetKind[MmluProTask]):
    """The suite `mmlu_pro`."""

    task, policy = MmluProTask, MmluProSuite
    folder_stem, examples_stem = "mmlu_pro", "mmlu_pro_dev"
    hub = HubQuestions(
        QuestionSource(
            kind="hub",
            id="TIGER-Lab/MMLU-Pro",
            config="default",
            split="test",
            shots_split="validation",
        ),
        12_032,
    )
    benchmark = hub.benchmark("MMLU-Pro")
    guessing = 1 / len(LETTERS)  # at least: many questions have fewer options
    filter = "custom-extract"

    def document(self, row: Row, place: str) -> Row:
        options = row.get("options")
        if (
            not isinstance(options, list)
            or not 2 <= len(options) <= len(LETTERS)
            or not all(isinstance(option, str) and option.strip() for option in options)
        ):
            raise EvaluationDataError("'options' is not 2 to 10 texts", where=place, hint=_FIELDS)
        category = text_of(row, "category", place, _FIELDS)
        if category not in SUBJECTS:
            raise EvaluationDataError(
                f"'category' is '{category}', which lm-eval has no task for",
                where=place,
                hint=f"use one of {', '.join(SUBJECTS)}",
            )
        return {
            "question": text_of(row, "question", place, _FIELDS),
            "options": options,
            "answer": _letter(row, LETTERS[: len(options)], place),
            "category": category,
        }

    def example(self, row: Row, place: str) -> Row:
        reasoning = text_of(row, "cot_content", place, f"{_FIELDS}; and cot_content, its reasoning")
        return {**self.document(row, place), "cot_content": reasoning}

    def group_of(self, document: Row) -> str:
        return str(document["category"])

    def choices(self, document: Row) -> list[tuple[str, float]]:
        letters = LETTERS[: len(document["options"])]
        return [(letter, float(letter == document["answer"])) for letter in letters]

    def task_file(self, task: MmluProTask, group: str) -> str:
        return f"mmlu_pro/mmlu_pro_{group.replace(' ', '_')}.yaml"

    def sample(self, group: str) -> Row:
        return {"question": "Which?", "options": ["this"], "answer": "A", "category": group}

    def shots(self, task: MmluProTask) -> int:
        return task.num_fewshot

    def expected(self, document: Row) -> str:
        letter = document["answer"]
        return f"{letter}. {document['options'][LETTERS.index(letter)]}"


def _letter(row: Row, letters: str, place: str) -> str:
    given: set[Any] = set()
    if "answer" in row:
        answer = row["answer"]
        given.add(answer if isinstance(answer, str) and len(answer) == 1 else None)
    if "answer_index" in row:
        index = row["answer_index"]
        is_number = isinstance(index, int) and not isinstance(index, bool)
        given.add(letters[index] if is_number and 0 <= index < len(letters) else None)
    letter = given.pop() if len(given) == 1 else None
    if letter is None or letter not in letters:
        raise EvaluationDataError(
            "'answer' or 'answer_index' does not name one of the options", where=place, hint=_FIELDS
        )
    return str(letter)
