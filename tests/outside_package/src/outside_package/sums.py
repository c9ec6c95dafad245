"""A suite of sums, whose questions this package carries."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from eval_gates.rows import Answer, Question, Reply
from eval_gates.suites.json_lines import read_rows
from eval_gates.suites.suite_kind import QuestionOrder, Read, SuiteKind
from recipes.policy import EvalTask, Source, Suite

QUESTIONS = Path(__file__).with_name("sums.jsonl")


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

    def questions(self, task: SumsTask, order: QuestionOrder) -> Read:
        rows = [row for _, row in read_rows(QUESTIONS)]
        return [Question(row["request"], row["request"], expected=row["sum"]) for row in rows], {}

    def settings(self, task: SumsTask) -> dict[str, Any]:
        return {"until": ["\n"], "max_gen_toks": 8}

    def score(self, task: SumsTask, question: Question, replies: Sequence[Reply]) -> Answer:
        return {"score": float(replies[0].text.strip() == question.expected)}

    def metric(self, task: SumsTask, laid_out: str | None) -> str:
        return f"exact_match of {task.digits} digits"
