"""GSM8K (Cobbe et al. 2021): problems of grade-school mathematics, asked as lm-eval does."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal

from pydantic import Field

from eval_gates.suites.generation import GeneratingTask
from eval_gates.suites.presets import HubSuite, Preset, PresetKind
from eval_gates.suites.question_source import QuestionSource
from eval_gates.suites.suite_kind import HubQuestions, Row
from recipes.generation import MaxTokens

_NUMBER = re.compile(r"#### *(-?[$0-9.,]*[0-9])\s*")


class Gsm8kTask(GeneratingTask):
    """Problems whose answer is a number."""

    kind: Literal["gsm8k"] = "gsm8k"
    num_fewshot: int = Field(
        8,
        ge=0,
        le=8,
        description="the first of lm-eval's eight worked examples, which reason step by step; with "
        "0 the prompt asks for steps",
    )
    max_tokens: MaxTokens = 1024


class Gsm8kSuite(Gsm8kTask, HubSuite):
    """Problems of grade-school mathematics; the last number of an answer counts."""


class Gsm8k(PresetKind):
    """The suite `gsm8k`."""

    task, policy = Gsm8kTask, Gsm8kSuite
    folder_stem = "gsm8k"
    preset = Preset(
        "GSM8K",
        "gsm8k/gsm8k-cot.yaml",
        "gsm8k/gsm8k-cot-zeroshot.yaml",
        "each line needs question, and answer, which ends with '#### ' and the number",
        {"question": "One and one?", "answer": "#### 2"},
        filter="flexible-extract",
    )
    hub = HubQuestions(
        QuestionSource(kind="hub", id="openai/gsm8k", config="main", split="test"), 1319
    )
    benchmark = hub.benchmark("GSM8K")

    def read(self, row: Row, text: Callable[[str], str]) -> Row:
        solution, _, _ = (answer := text("answer")).rpartition("####")
        number = _NUMBER.fullmatch(answer, len(solution))
        if number is None:
            raise ValueError("'answer' does not end with '####' and a number")
        return {"question": text("question"), "answer": f"{solution}#### {number[1]}"}
