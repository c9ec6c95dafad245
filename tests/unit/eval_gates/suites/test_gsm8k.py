"""GSM8K: problems in the authors' form, and what a line must have."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval_gates.suites.gsm8k import Gsm8k, Gsm8kTask
from pipeline.core.errors import EvaluationDataError

ROW = {"question": "Three cars and two. How many?", "answer": "3 + 2 = <<3+2=5>>5.\n#### 5"}


def test_a_problem_keeps_its_solution() -> None:
    assert Gsm8k().document({**ROW, "id": 7}, "here") == ROW


@pytest.mark.parametrize("number", ["18", "-3", "2,125", "$1,000.50", "0.5", "7 \n"])
def test_numbers_that_lm_eval_can_extract(number: str) -> None:
    document = Gsm8k().document({**ROW, "answer": f"So.\n####{number}"}, "here")
    assert document["answer"] == f"So.\n#### {number.strip()}"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"question": " "}, "'question'"),
        ({"answer": None}, "'answer'"),
        ({"answer": "5"}, "'answer' does not end"),
        ({"answer": "It is\n#### five"}, "'answer' does not end"),
        ({"answer": "It is\n#### 5 apples"}, "'answer' does not end"),
        ({"answer": "#### 5\nso"}, "'answer' does not end"),
    ],
)
def test_a_malformed_line_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(EvaluationDataError, match=message) as caught:
        Gsm8k().document({**ROW, **change}, "gsm8k.jsonl, line 2")
    assert caught.value.where == "gsm8k.jsonl, line 2"


@given(st.text(max_size=30), st.integers(-(10**9), 10**9))
def test_the_last_marker_counts(solution: str, number: int) -> None:
    document = Gsm8k().document({**ROW, "answer": f"{solution}#### {number:,}"}, "here")
    assert document["answer"] == f"{solution}#### {number:,}"


def test_with_examples_and_without_are_two_tasks_of_lm_eval() -> None:
    files = [
        Gsm8k().task_file(Gsm8kTask(kind="gsm8k", num_fewshot=shots), "") for shots in (0, 1, 8)
    ]
    assert files == [
        "gsm8k/gsm8k-cot-zeroshot.yaml",
        "gsm8k/gsm8k-cot.yaml",
        "gsm8k/gsm8k-cot.yaml",
    ]
