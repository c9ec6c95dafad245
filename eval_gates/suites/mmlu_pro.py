"""MMLU-Pro (Wang et al. 2024): 14 subjects, up to ten options, answered after reasoning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from pydantic import Field

from eval_gates.suites.generation import GeneratingTask
from eval_gates.suites.presets import HubSuite, Preset, PresetKind
from eval_gates.suites.question_source import QuestionSource
from eval_gates.suites.suite_kind import HubQuestions, Row
from recipes.generation import MaxTokens

LETTERS = "ABCDEFGHIJ"
SUBJECTS = (
    *("biology", "business", "chemistry", "computer science", "economics", "engineering", "health"),
    *("history", "law", "math", "other", "philosophy", "physics", "psychology"),
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


class MmluPro(PresetKind):
    """The suite `mmlu_pro`."""

    task, policy = MmluProTask, MmluProSuite
    guessing = 1 / len(LETTERS)  # at least: many questions have fewer options
    assumed_baseline = 0.5
    folder_stem, examples_stem = "mmlu_pro", "mmlu_pro_dev"
    preset = Preset(
        "MMLU-Pro",
        "mmlu_pro/mmlu_pro_{subject}.yaml",
        "mmlu_pro/mmlu_pro_{subject}.yaml",
        "each line needs question, options (2 to 10 texts), answer (a letter A to J) or "
        "answer_index (0 to 9), and category, one of " + ", ".join(SUBJECTS),
        {"question": "Which?", "options": ["this"], "answer": "A"},
        filter="custom-extract",
        subject="category",
        examples="cot_content",
    )
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

    def read(self, row: Row, text: Callable[[str], str]) -> Row:
        options, category = row.get("options"), text("category")
        if (
            not isinstance(options, list)
            or not 2 <= len(options) <= len(LETTERS)
            or not all(isinstance(option, str) and option.strip() for option in options)
        ):
            raise ValueError("'options' is not 2 to 10 texts")
        if category not in SUBJECTS:
            raise ValueError(f"'category' is '{category}', which lm-eval has no task for")
        letters = list(LETTERS[: len(options)])
        number = row.get("answer_index")
        named = {letters[number]} if type(number) is int and number in range(len(letters)) else {""}
        given = (named if "answer_index" in row else set()) | (
            {str(row["answer"])} if "answer" in row else set()
        )
        letter = given.pop() if len(given) == 1 else ""
        if letter not in letters:
            raise ValueError("'answer' or 'answer_index' does not name one of the options")
        found = {"question": text("question"), "options": options, "answer": letter}
        return {**found, "category": category}

    def choices(self, document: Row) -> list[tuple[str, float]]:
        letters = LETTERS[: len(document["options"])]
        return [(letter, float(letter == document["answer"])) for letter in letters]

    def expected(self, document: Row) -> str:
        letter = document["answer"]
        return f"{letter}. {document['options'][LETTERS.index(letter)]}"
