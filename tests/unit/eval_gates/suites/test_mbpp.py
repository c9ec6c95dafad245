"""MBPP+: rows to problems, prompts, and programs that are really run: right, wrong and hostile."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval_gates.question_set import judged_apart
from eval_gates.sandbox import Program, run_many
from eval_gates.suites.code_suite import prompt_of
from eval_gates.suites.mbpp import Mbpp, MbppTask, problem_of, select_usable
from eval_gates.suites.sources import QuestionSource
from eval_gates.suites.suite_kind import QuestionOrder
from prepare.errors import EvaluationDataError
from prepare.events import NullProgress

PLACE = "mbpp.jsonl, line 1"
# As MBPP+'s programs are: a comparison of their own, then inputs and results at the top level.
COMPARED = """\
import numpy as np

def is_floats(x) -> bool:
    if isinstance(x, float):
        return True
    if isinstance(x, (list, tuple)):
        return all(isinstance(i, float) for i in x)
    return False

def assertion(out, exp, atol):
    equal = out == exp
    if atol == 0 and is_floats(exp):
        atol = 1e-6
    if not equal and atol != 0:
        assert np.allclose(out, exp, rtol=1e-07, atol=atol)
    else:
        assert equal
"""
SPREAD: dict[str, Any] = {
    "task_id": 9001,
    "prompt": "Write a function to tell how far the largest number is above the smallest.",
    "code": "def largest(numbers):\n  return max(numbers)\n\n"
    "def spread(numbers: 'Numbers', start=0):\n  return largest(numbers) - min(numbers)\n",
    "source_file": "made for this test",
    "test_imports": ["from math import inf"],
    "test_list": ["assert spread([3, 1, 2]) == 2", "assert spread([5]) == 0"],
    "test": f"{COMPARED}\ninputs = [[[3, 1, 2]], [[5]], [[-inf, inf]]]\nresults = [2, 0, inf]\n"
    "for i, (inp, exp) in enumerate(zip(inputs, results)):\n"
    "    assertion(spread(*inp), exp, 0)\n",
}
MEAN: dict[str, Any] = {
    "task_id": 9002,
    "prompt": "Write a function for the mean.",
    "code": "def mean(numbers):\n  return sum(numbers) / len(numbers)\n",
    "test_imports": [],
    "test_list": ["assert mean([1, 2]) == 1.5"],
    "test": f"{COMPARED}\ninputs = [[[1, 2]], [[0.1, 0.2, 0.3]]]\nresults = [1.5, 0.2]\n"
    "for i, (inp, exp) in enumerate(zip(inputs, results)):\n"
    "    assertion(mean(*inp), exp, 0)\n",
}
SPREAD_PROBLEM, MEAN_PROBLEM = problem_of(SPREAD, PLACE), problem_of(MEAN, PLACE)


def test_a_row_is_asked_as_humanevals_problems_are() -> None:
    assert SPREAD_PROBLEM.task_id == "Mbpp/9001"
    assert SPREAD_PROBLEM.entry_point == "spread"
    assert prompt_of(SPREAD_PROBLEM, "completion") == (
        "def spread(numbers, start=0):\n"
        '    """Write a function to tell how far the largest number is above the smallest.\n\n'
        '    assert spread([3, 1, 2]) == 2\n    """\n'
    )


PROGRAMS = [
    (SPREAD_PROBLEM, SPREAD["code"], "passed"),
    (SPREAD_PROBLEM, "def spread(n):\n    return max(n)\n", "failed"),
    (SPREAD_PROBLEM, "def spread(n):\n    return [", "failed"),
    (SPREAD_PROBLEM, "def other(n):\n    return 2\n", "failed"),
    (SPREAD_PROBLEM, "import os\n\ndef spread(n):\n    os._exit(0)\n", "failed"),
    (SPREAD_PROBLEM, "def spread(n):\n    raise SystemExit(0)\n", "failed"),
    (SPREAD_PROBLEM, "def spread(n):\n    raise StopIteration\n", "failed"),
    (MEAN_PROBLEM, MEAN["code"], "passed"),
    (MEAN_PROBLEM, "def mean(n):\n    return sum(n) / len(n) + 1e-9\n", "passed"),
    (MEAN_PROBLEM, "def mean(n):\n    return sum(n) / len(n) + 1e-3\n", "failed"),
    # numpy would stretch these to the result's shape, and call nothing close to anything.
    (MEAN_PROBLEM, "def mean(n):\n    return []\n", "failed"),
    (MEAN_PROBLEM, "def mean(n):\n    return [[sum(n) / len(n)]]\n", "failed"),
]


def test_programs_show_what_solves_the_problem() -> None:
    executions = run_many(
        [Program(code, problem.test) for problem, code, _ in PROGRAMS],
        seconds=20,
        memory_bytes=2**30,
    )
    wrong = [
        (code, outcome, execution)
        for (_, code, outcome), execution in zip(PROGRAMS, executions, strict=True)
        if execution.outcome != outcome
    ]
    assert not wrong


def test_the_answers_shape_is_seen_to_in_both_of_numpys_comparisons() -> None:
    asserting = MEAN["test"].replace(
        "assert np.allclose(out, exp, rtol=1e-07, atol=atol)",
        "np.testing.assert_allclose(out, exp, atol=atol)",
    )
    problem = problem_of({**MEAN, "test": asserting}, PLACE)
    right, empty = run_many(
        [Program(code, problem.test) for code in (MEAN["code"], "def mean(n):\n    return []\n")],
        seconds=20,
        memory_bytes=2**30,
    )
    assert (right.outcome, empty.outcome) == ("passed", "failed"), (right, empty)


def test_the_example_of_the_documentation() -> None:
    page = Path(__file__).parents[4] / "docs" / "how-to" / "suites.md"
    blocks = page.read_text().split("```json\n")[1:]
    (example,) = [block for block in blocks if '"test_list"' in block]
    row = json.loads(example.partition("```")[0])
    assert problem_of(row, PLACE).entry_point == "twice"


def test_a_few_of_a_dataset_are_left_out_and_more_are_another_form() -> None:
    rows = [(f"row {number}", {**SPREAD, "task_id": number}) for number in range(20)]
    rows[3][1]["test"] = "assert spread([Pair()]) == 0"
    problems, (left_out,) = select_usable(rows)
    assert len(problems) == 19
    assert left_out.startswith("row 3: 'test' must use 'spread'")
    assert left_out.endswith("such as Pair")
    rows[4][1]["test"] = "pass"
    with pytest.raises(EvaluationDataError, match="Pair"):
        select_usable(rows)


# Neither half a character nor a NUL can stand in a source text; a test above has them refused.
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))


@given(sentence=TEXTS.filter(str.strip), shown=TEXTS)
def test_whatever_the_sentence_the_prompt_is_one_function(sentence: str, shown: str) -> None:
    row = {**SPREAD, "prompt": sentence, "test_list": [f"assert spread({shown!r}) == 0"]}
    (function,) = ast.parse(f"{problem_of(row, PLACE).header}    pass\n").body
    assert isinstance(function, ast.FunctionDef)
    assert len(function.body) == 2


def test_chosen_problems_have_their_own_rows_fields(tmp_path: Path) -> None:
    """They were paired by their place in the file."""
    rows = [{**SPREAD, "task_id": n, "prompt": f"Task {n}.", "topic": f"t{n}"} for n in range(5)]
    file = tmp_path / "mbpp_test.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    order = QuestionOrder(QuestionSource(kind="folder"), file, tmp_path, NullProgress())
    task = MbppTask(problems=["Mbpp/4", "Mbpp/1"], parts_by="topic")
    questions, _ = Mbpp().questions(task, order)
    apart = judged_apart(Mbpp(), task, questions, [file], lambda text: None)
    parts = [(question.id, question.part) for question in apart]
    assert parts == [("Mbpp/4", "t4"), ("Mbpp/1", "t1")]
