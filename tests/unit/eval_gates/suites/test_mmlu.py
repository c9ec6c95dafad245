"""MMLU: reading questions, worked examples, the prompts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eval_gates.suites import mmlu
from eval_gates.suites.sources import QuestionSource
from eval_gates.suites.suite_kind import QuestionOrder
from prepare.errors import EvaluationDataError
from prepare.events import NullProgress

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
    # Subjects whose names begin as those do.
    law = {**ROW, "question": "Whose is it?", "answer": 1.0}
    device = {**ROW, "question": "What does it do?"}
    write(tmp_path, law, name="mmlu_professional_law.jsonl")
    write(tmp_path, device, name="mmlu_device_use.jsonl")
    order = QuestionOrder(QuestionSource(kind="folder"), tmp_path, tmp_path, NullProgress())
    found, _ = mmlu.Mmlu().questions(mmlu.MmluTask(num_fewshot=1), order)
    assert [each.data for each in found] == [device, {**law, "answer": 1}, ROW, OTHER]
    assert type(found[1].data["answer"]) is int
    assert all("dev?" in each.prompt for each in found)


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
