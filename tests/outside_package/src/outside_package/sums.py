"""A suite of sums, whose questions this package carries."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from eval_gates.suites.answer_rows import common_fields, texts_of
from eval_gates.suites.fixed_task import task_of
from eval_gates.suites.json_lines import read_rows
from eval_gates.suites.suite_kind import QuestionOrder, Read, Rows, SuiteKind, SuiteTask
from recipes.policy import EvalTask, Source, Suite

QUESTIONS = Path(__file__).with_name("sums.jsonl")
TASK = {  # as lm-eval describes one
    "task": "sums",
    "test_split": "test",
    "output_type": "generate_until",
    "doc_to_text": "{{request}}",
    "doc_to_target": "{{sum}}",
    "generation_kwargs": {"until": ["\n"], "max_gen_toks": 8, "temperature": 0.0},
    "num_fewshot": 0,
    "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
    "metadata": {"version": 1.0},
}


class SumsTask(EvalTask):
    """What an answer depends on."""

    kind: Literal["sums"] = "sums"
    digits: int = 2


class SumsSuite(SumsTask, Suite):
    """What decides."""

    sources: list[Source] = Field(default=["builtin"])


class Sums(SuiteKind[SumsTask]):
    """The suite `sums`."""

    task, policy = SumsTask, SumsSuite
    carried = QUESTIONS

    def read(self, task: SumsTask, order: QuestionOrder) -> Read:
        rows = [row for _, row in read_rows(QUESTIONS)]
        return [{"id": row["request"], **row} for row in rows], {}

    def open(self, task: SumsTask, questions: Rows, folder: Path) -> SuiteTask:
        asked = task_of(TASK, questions)
        return SuiteTask(asked, self.metric(task, None), answer_rows, 1)

    def metric(self, task: SumsTask, laid_out: str | None) -> str:
        return f"exact_match of {task.digits} digits"


def answer_rows(questions: Rows, samples: Rows, progress: Any) -> Rows:
    return [
        {
            **common_fields(question, sample),
            "answer": texts_of(sample)[0],
            "score": float(texts_of(sample)[0].strip() == question["sum"]),
        }
        for question, sample in zip(questions, samples, strict=True)
    ]
