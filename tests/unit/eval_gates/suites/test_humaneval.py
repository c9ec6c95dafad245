"""HumanEval: problems, prompts, programs that are really run, and the estimator of pass@k."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval_gates.sandbox import Program, run_many
from eval_gates.suites.code_suite import Problem, pass_at_k
from eval_gates.suites.humaneval import complete

PROMPT = (
    "from typing import List\n\n\ndef half(x: int) -> int:\n    return x // 2\n\n\n"
    'def halves(numbers: List[int]) -> List[int]:\n    """ Halve each number."""\n'
)
PROBLEM = Problem(
    task_id="Test/0",
    header=PROMPT,
    entry_point="halves",
    test="def check(candidate):\n    assert candidate([4, 7]) == [half(4), 3]\n",
)


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        (PROMPT + "    return [half(number) for number in numbers]\n", "passed"),
        ("def halves(numbers):\n    return [n // 2 for n in numbers]\n", "passed"),
        ("def halves(numbers):\n    return numbers\n", "failed"),
        ("def half(x):\n    return x\n\n\ndef halves(numbers):\n    return [4, 3]\n", "failed"),
        ("def halves(numbers):\n    return [", "failed"),
    ],
)
def test_programs_show_what_solves_the_problem(code: str, outcome: str) -> None:
    """The test's `half` is the prompt's, also if the model's code redefines it."""
    (execution,) = run_many([Program(code, complete(PROBLEM).test)], seconds=10, memory_bytes=2**28)
    assert execution.outcome == outcome, execution.detail


@given(st.integers(1, 8), st.integers(0, 8), st.integers(1, 8))
def test_pass_at_k_is_the_share_of_samples_with_a_right_one(
    samples: int, correct: int, k: int
) -> None:
    if correct > samples or k > samples:
        with pytest.raises(ValueError, match=f"pass@{k} "):
            pass_at_k(samples, correct, k)
        return
    draws = list(combinations(range(samples), k))
    right = sum(min(draw) < correct for draw in draws)

    assert pass_at_k(samples, correct, k) == pytest.approx(right / len(draws))
