"""GSM8K (Cobbe et al. 2021): 1,319 problems of grade-school mathematics, asked as lm-eval does."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field

from eval_gates.suites.generation import GeneratingTask
from eval_gates.suites.json_lines import text_of
from eval_gates.suites.presets import HubSuite, PresetKind
from eval_gates.suites.question_source import QuestionSource
from eval_gates.suites.suite_kind import HubQuestions, Row
from pipeline.core.errors import EvaluationDataError
from recipes.generation import MaxTokens


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


class Gsm8k(PresetKind[Gsm8kTask]):
    """The suite `gsm8k`."""

    task, policy = Gsm8kTask, Gsm8kSuite
    folder_stem = "gsm8k"
    hub = HubQuestions(
        QuestionSource(kind="hub", id="openai/gsm8k", config="main", split="test"), 1319
    )
    benchmark = hub.benchmark("GSM8K")
    assumed_baseline = 0.7
    filter = "flexible-extract"

    def document(self, row: Row, place: str) -> Row:
        fields = "each line needs question, and answer, which ends with '#### ' and the number"
        solution, _, _ = (answer := text_of(row, "answer", place, fields)).rpartition("####")
        number = re.compile(r"#### *(-?[$0-9.,]*[0-9])\s*").fullmatch(answer, len(solution))
        if number is None:
            raise EvaluationDataError(
                "'answer' does not end with '####' and a number", where=place, hint=fields
            )
        question = text_of(row, "question", place, fields)
        return {"question": question, "answer": f"{solution}#### {number[1]}"}

    def task_file(self, task: Gsm8kTask, group: str) -> str:
        return "gsm8k/gsm8k-cot.yaml" if task.num_fewshot else "gsm8k/gsm8k-cot-zeroshot.yaml"

    def shots(self, task: Gsm8kTask) -> int:
        return task.num_fewshot

    def sample(self, group: str) -> Row:
        return {"question": "One and one?", "answer": "#### 2"}

    def expected(self, document: Row) -> str:
        return str(document["answer"])
