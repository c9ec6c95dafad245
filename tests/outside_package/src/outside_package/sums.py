"""A suite of sums, whose questions this package carries.

`pyproject.toml` names it (sums = "outside_package.sums:Sums" under `prepare.suites`), and a policy
asks it: `suites: {sums: {kind: sums, digits: 2, margins: {fp8: 0.01, int4: 0.02}}}`.

A question has an id, a `prompt` or `messages`, what is `expected`, `continuations` if one of them
is to be chosen, and `data` for its score. A reply has a `text`, `calls` of tools, or each
continuation's `values`: its log-probability, and whether it is the greedy one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from eval_gates.rows import Question, Reply, Score
from eval_gates.suites.json_lines import read_rows
from eval_gates.suites.suite_kind import QuestionOrder, Read, SuiteKind
from recipes.policy import EvalTask


class SumsTask(EvalTask):
    """What an answer depends on; margins, tier and number of questions are every suite's."""

    kind: Literal["sums"] = "sums"
    digits: int = 2


class Sums(SuiteKind[SumsTask]):
    """Sums, right if the answer is the number alone."""

    task = SumsTask
    sources = ("builtin",)  # or "eval-data": files `<folder_stem>*.jsonl`; "hub", with `hub`
    carried = Path(__file__).with_name("sums.jsonl")

    def questions(self, task: SumsTask, order: QuestionOrder) -> Read:
        """Return the questions, and facts such as `choices`, from which guessing follows."""
        rows = [row for _, row in read_rows(self.carried)]
        return [Question(row["request"], row["request"], expected=row["sum"]) for row in rows], {}

    def settings(self, task: SumsTask) -> dict[str, Any]:
        """Return how an answer is generated; not needed where continuations are scored."""
        return {"until": ["\n"], "max_gen_toks": 8}

    def score(self, task: SumsTask, question: Question, replies: Sequence[Reply]) -> Score:
        return Score(float(replies[0].text.strip() == question.expected))

    def metric(self, task: SumsTask, laid_out: str | None) -> str:
        return f"exact_match of {task.digits} digits"
