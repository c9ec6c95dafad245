"""Asks a served model one suite's questions and keeps every answer, one line each.

`answers.jsonl` has, per question and in the questions' order: id, prompt_sha256, answer, score
(0 to 1) and whatever the suite adds.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pipeline.digest import digest_bytes
from pipeline.errors import StageError
from pipeline.stages.context import StageContext

REVISION = 1
ANSWERS = "answers.jsonl"


def run(context: StageContext) -> dict[str, Any]:
    """Run the suite against the endpoint.

    Raises:
        StageError: there is not exactly one answer a question.
    """
    questions = context.input_folder("questions")
    facts = context.run_worker(
        "evaluate",
        {
            "suite": context.parameters["suite"],
            "questions": str(questions / "questions.jsonl"),
            "url": context.runtime["url"],
            "tokenizer": context.runtime["tokenizer"],
            "max_length": context.parameters["max_length"],
            "trust_remote_code": context.parameters["trust_remote_code"],
        },
    )
    answers = read_answers(context.folder)
    expected = context.input_record("questions").result["questions"]
    if len(answers) != expected:
        raise StageError(
            f"{len(answers)} answers to {expected} questions", where=str(context.folder / ANSWERS)
        )
    return {
        **facts,
        "n": len(answers),
        "score": sum(answer["score"] for answer in answers) / len(answers),
        "answers_digest": digest_bytes((context.folder / ANSWERS).read_bytes()),
    }


def read_answers(folder: Path) -> list[dict[str, Any]]:
    """The answers in that stage folder, in the questions' order."""
    with (folder / ANSWERS).open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]
