"""MMLU-Pro: questions in the authors' form, their subjects, and what guessing scores."""

from __future__ import annotations

from typing import Any

import pytest

from eval_gates.suites.mmlu_pro import LETTERS, MmluPro, MmluProTask
from pipeline.core.errors import EvaluationDataError

ROW = {
    "question": "Which is a prime?",
    "options": ["8", "9", "11"],
    "answer": "C",
    "category": "computer science",
}
SUITE, TASK = MmluPro(), MmluProTask(kind="mmlu_pro")


@pytest.mark.parametrize("key", [{"answer": "C"}, {"answer_index": 2}, {"answer_index": 2} | ROW])
def test_the_key_is_a_letter_or_a_number(key: dict[str, Any]) -> None:
    row = {name: value for name, value in ROW.items() if name != "answer"}
    assert SUITE.document({**row, "src": "x", **key}, "here") == ROW


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"question": 3}, "'question'"),
        ({"options": ["8"]}, "'options'"),
        ({"options": list("abcdefghijk")}, "'options'"),
        ({"options": ["8", " ", "11"]}, "'options'"),
        ({"options": "8 9 11"}, "'options'"),
        ({"category": "astrology"}, "'category' is 'astrology'"),
        ({"category": ""}, "'category'"),
        ({"answer": "D"}, "'answer'"),
        ({"answer": "c"}, "'answer'"),
        ({"answer": "AB"}, "'answer'"),
        ({"answer": 2}, "'answer'"),
        ({"answer_index": 1}, "'answer'"),
        ({"answer_index": True}, "'answer'"),
        ({"answer_index": 3}, "'answer'"),
        ({"answer_index": -1}, "'answer'"),
    ],
)
def test_a_malformed_line_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(EvaluationDataError, match=message) as caught:
        SUITE.document({**ROW, **change}, "mmlu_pro.jsonl, line 2")
    assert caught.value.where == "mmlu_pro.jsonl, line 2"


def test_a_worked_example_needs_its_reasoning() -> None:
    with pytest.raises(EvaluationDataError, match="'cot_content'") as caught:
        SUITE.example(ROW, "mmlu_pro_dev.jsonl, line 1")
    assert "cot_content" in caught.value.hint
    reasoned = {**ROW, "cot_content": "A: Let's think step by step."}
    assert SUITE.example(reasoned, "here") == reasoned


def test_each_subject_is_a_task_of_lm_eval() -> None:
    assert SUITE.task_file(TASK, "computer science") == "mmlu_pro/mmlu_pro_computer_science.yaml"
    assert SUITE.group_of(ROW) == "computer science"


def test_one_option_is_right() -> None:
    assert SUITE.choices(ROW) == [("A", 0.0), ("B", 0.0), ("C", 1.0)]


def test_guessing_scores_at_least_a_tenth() -> None:
    assert pytest.approx(1 / len(LETTERS)) == SUITE.guessing == 0.1


def test_the_expected_answer_is_its_letter_and_text() -> None:
    assert SUITE.expected(ROW) == "C. 11"
