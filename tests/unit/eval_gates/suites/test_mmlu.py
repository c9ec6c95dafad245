"""MMLU: reading questions, lm-eval's chain-of-thought prompts, worked examples, the prompts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval_gates.rows import Reply
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
    assert [row["question"] for row in mmlu.read_examples(tmp_path)] == ["dev?"]


def test_development_questions_may_be_absent(tmp_path: Path) -> None:
    assert mmlu.read_examples(write(tmp_path, ROW)) == []


def test_a_folder_without_questions_says_what_to_put_there(tmp_path: Path) -> None:
    with pytest.raises(EvaluationDataError) as caught:
        mmlu.read_folder(tmp_path)
    assert caught.value.where == str(tmp_path)

    assert "mmlu_test.jsonl" in caught.value.hint
    assert "four texts" in caught.value.hint


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"subject": ""}, "'subject'"),
        ({"question": None}, "'question'"),
        ({"choices": ["a", "b", "c"]}, "'choices'"),
        ({"choices": ["a", "b", "c", ""]}, "'choices'"),
        ({"choices": "abcd"}, "'choices'"),
        ({"answer": 4}, "'answer' is 4"),
        ({"answer": -1}, "'answer' is -1"),
        ({"answer": True}, "'answer' is True"),
        ({"answer": "E"}, "'answer' is 'E'"),
        ({"answer": "AB"}, "'answer' is 'AB'"),
        ({"answer": ""}, "'answer' is ''"),
        ({"answer": 1.0}, "'answer' is 1.0"),
    ],
)
def test_a_malformed_line_is_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    write(tmp_path, ROW, {**ROW, **change})

    with pytest.raises(EvaluationDataError, match=message) as caught:
        mmlu.read_folder(tmp_path)

    assert caught.value.where.endswith("mmlu_test.jsonl, line 2")


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


def test_items_may_follow_after_a_single_line_break() -> None:
    assert len(parse(GOOD_ITEM.rstrip("\n") + "\n", GOOD_ITEM).questions) == 2


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


def test_without_lm_eval_the_hint_is_named() -> None:
    with pytest.raises(EvaluationDataError) as caught:
        mmlu.read_builtin()
    assert caught.value.where.endswith("_cot_prompts.json")

    assert "prepare doctor --build evaluate" in caught.value.hint


# --- examples and prompts -----------------------------------------------------------------------


def test_a_letter_question_reads_as_lm_evals() -> None:
    (asked,) = mmlu.lay_out([OTHER], [ROW], "letter", 1)
    assert asked.prompt.startswith(
        "The following are multiple choice questions (with answers) about high school physics.\n\n"
        "What falls?\nA. an apple\nB. the sky\nC. night\nD. nothing\nAnswer: A\n\n"
    )
    assert asked.continuations == (" A", " B", " C", " D")


def test_a_cloze_question_names_the_answer_itself() -> None:
    (asked,) = mmlu.lay_out([ROW], [OTHER], "cloze", 1)
    assert "Question: What flies?\nAnswer: c\n\n" in asked.prompt
    assert asked.continuations == tuple(f" {text}" for text in ROW["choices"])


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


@pytest.mark.parametrize(
    ("form", "values", "score"),
    [
        ("letter", (-1.0, -2.0, -3.0, -4.0), 1.0),
        ("letter", (-2.0, -1.0, -3.0, -4.0), 0.0),
        ("cloze", (-8.0, -7.0, -9.0, -9.0), 1.0),  # per character: 'an apple' has the most
    ],
)
def test_the_likeliest_choice_counts(
    form: mmlu.Form, values: tuple[float, ...], score: float
) -> None:
    (asked,) = mmlu.lay_out([ROW], [], form, 0)
    reply = Reply(values=tuple((value, False) for value in values))
    task = mmlu.MmluTask(prompt_format=form, num_fewshot=0)
    assert mmlu.Mmlu().score(task, asked, [reply])["score"] == score
