"""MMLU: reading questions, lm-eval's chain-of-thought prompts, worked examples, the prompts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval_gates.suites import mmlu
from pipeline.core.errors import EvaluationDataError

ROW = {
    "subject": "high_school_physics",
    "question": " What falls? ",
    "choices": ["an apple", "the sky", "night", "nothing"],
    "answer": 0,
}
OTHER = {**ROW, "question": "What flies?", "choices": ["a", "b", "c", "d"], "answer": 2}


def write(folder: Path, *rows: dict[str, Any], name: str = "mmlu_test.jsonl") -> Path:
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_a_folder_gives_its_questions_without_the_development_ones(tmp_path: Path) -> None:
    write(tmp_path, ROW, {**OTHER, "answer": "C"})
    write(tmp_path, {**ROW, "question": "dev?"}, name="mmlu_dev.jsonl")
    write(tmp_path, {"question": "another suite's"}, name="mmlu_pro_test.jsonl")

    assert mmlu.read_folder(tmp_path) == [ROW, OTHER]


# --- lm-eval's chain-of-thought prompts ---------------------------------------------------------

DESCRIPTION = "The following are multiple choice questions (with answers) about anatomy.\n\n"
GOOD_ITEM = (
    "Q: Which (i) bone\nis longest?\n(A) The femur. (B) The ulna (C) The tibia\n(D) None of them\n"
    "A: Let's think step by step. The femur\n\nis long. The answer is (A).\n\n"
)


def parse(*items: str) -> mmlu.BuiltinQuestions:
    return mmlu.parse_cot_prompts({"anatomy": DESCRIPTION + "".join(items)})


def test_an_item_is_parsed_whole() -> None:
    carried = parse(GOOD_ITEM)

    assert carried.skipped == []
    assert carried.questions == [
        {
            "subject": "anatomy",
            "question": "Which (i) bone\nis longest?",
            "choices": ["The femur.", "The ulna", "The tibia", "None of them"],
            "answer": 0,
        }
    ]


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("(D) None of them", "(D) None (E) All", "not exactly the choices"),
        ("(D) None of them", "", "not exactly the choices"),
        ("Which (i)", "Which (A) or which", "not exactly the choices"),
        ("(B) The ulna (C) The tibia", "(C) The ulna (B) The tibia", "not in order"),
        ("(B) The ulna", "(B)", "not in order"),
        ("longest?\n(A)", "longest? (A)", "not in order"),
        ("The answer is (A)", "So it is (A)", "0 sentences name the answer"),
        ("The answer is (A)", "The answer is (E)", "0 sentences name the answer"),
        ("is long.", "The answer is (B). No.", "2 sentences name the answer"),
        ("\nA: ", "\n", "not one question with one answer"),
        ("is long.", "x\nA: y", "not one question with one answer"),
        ("Which (i)", "The group has $\nactorial{n}$ elements.\nWhich (i)", "another item's"),
    ],
)
def test_an_item_that_is_not_sure_is_skipped_and_said(old: str, new: str, why: str) -> None:
    assert old in GOOD_ITEM
    carried = parse(GOOD_ITEM, GOOD_ITEM.replace(old, new, 1), GOOD_ITEM)

    assert len(carried.questions) == 2
    assert len(carried.skipped) == 1
    assert carried.skipped[0].startswith("anatomy, item 2: ")
    assert why in carried.skipped[0]


phrases = st.text(alphabet="abc xyz.,?$^{}123", min_size=1).filter(str.strip)


@given(phrases, st.lists(phrases, min_size=4, max_size=4), st.integers(0, 3), phrases)
def test_what_is_written_in_the_form_is_read_back(
    question: str, choices: list[str], answer: int, reasoning: str
) -> None:
    listed = " ".join(f"({letter}) {text}" for letter, text in zip("ABCD", choices, strict=True))
    item = f"Q: {question}\n{listed}\nA: {reasoning} The answer is ({'ABCD'[answer]}).\n\n"

    (read,) = parse(item).questions

    assert read["question"] == question.strip()
    assert read["choices"] == [choice.strip() for choice in choices]
    assert read["answer"] == answer


@given(st.dictionaries(st.text(), st.text(alphabet="QA: \n(ABCDE).answer is", max_size=200)))
def test_no_text_breaks_the_parser(prompts: dict[str, str]) -> None:
    for question in mmlu.parse_cot_prompts(prompts).questions:
        assert len(question["choices"]) == 4
        assert all(question["choices"])
        assert question["answer"] in range(4)


# --- examples and prompts -----------------------------------------------------------------------


def test_examples_are_the_first_of_the_subject_and_never_the_question_itself() -> None:
    pool = [{**ROW, "question": f"number {n}?"} for n in range(4)]
    stranger = {**ROW, "subject": "virology", "question": "stranger?"}
    asked = mmlu.lay_out(pool, [stranger, *pool], "letter", 2)
    shown = [[line for line in each.prompt.splitlines() if "?" in line][:2] for each in asked]
    assert shown == [
        ["number 1?", "number 2?"],
        ["number 0?", "number 2?"],
        ["number 0?", "number 1?"],
        ["number 0?", "number 1?"],
    ]


def test_too_few_examples_are_told_with_a_hint() -> None:
    with pytest.raises(EvaluationDataError, match="high_school_physics") as caught:
        mmlu.lay_out([ROW], [ROW, OTHER], "letter", 2)
    assert "set num_fewshot to 1" in caught.value.hint
