"""Worker: tries suites before thousands of questions are asked; stores nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eval_gates.answer_log import read_answers
from eval_gates.ask import Client
from eval_gates.evaluate_worker import BatchAsker, OpenSuite, template_of
from eval_gates.model_tokenizer import Tokenizer
from eval_gates.rows import Answer, digest
from prepare.errors import StageError
from prepare.events import Progress


def run(spec: dict[str, Any], progress: Progress, output: Path) -> dict[str, Any]:
    """Compare prompts with recorded ones, and ask first questions.

    `spec` has objects as evaluate_worker's: `recorded_prompts`, each with `recorded`, the file of
    earlier answers; `first_rows`, by suite those of the living sides.
    """
    for asked in spec.get("recorded_prompts", ()):
        compare_prompts(asked)
    for sides in spec.get("first_rows", ()):
        ask_first_row(sides, progress)
    return {}


def ask_first_row(sides: Sequence[dict[str, Any]], progress: Progress) -> None:
    """Ask baseline and candidate a suite's first question."""
    baseline: dict[str, Answer] | None = None
    for side in sides:
        suite = OpenSuite(side["suite"], Path(side["questions"]))
        asker = BatchAsker(side, suite, progress, 1, baseline)
        try:
            (question,), ((reply, *_),) = asker.replies(range(1))
        except StageError as error:
            raise StageError(
                f"the {side['side']} cannot be asked the suite '{side['name']}': {error.message}",
                where=f"--{side['side']} {error.where or side['url']}",
                hint=error.hint,
            ) from error
        baseline = {question.id: Answer(question.id, "", 0.0, own=reply.own)}


def compare_prompts(asking: dict[str, Any]) -> None:
    """Compare the prompts of recorded answers with those of a suite now; nothing is asked.

    StageError: the first that differs. A suite whose prompts the server renders is compared by its
    first question.
    """
    suite = OpenSuite(asking["suite"], Path(asking["questions"]))
    recorded = read_answers(Path(asking["recorded"]).parent)
    if suite.reads_baseline:
        return
    tokenizer = None
    if not asking["by_chat"]:
        arguments = asking["suite"].get("chat_template_kwargs") or {}
        tokenizer = Tokenizer.load(
            asking["tokenizer"], arguments, trust=asking["trust_remote_code"]
        )
    client = Client(asking["url"], asking["model"], suite.settings, tokenizer=tokenizer)
    asked = suite.render(range(len(recorded)), template_of(client))
    for question, answer in zip(asked, recorded, strict=True):
        if (question.id, digest(question)) != (answer.id, answer.prompt_sha256):
            raise StageError(
                f"the prompts of the suite '{asking['name']}' are not those of the recorded "
                f"answers: the first that differs is question {answer.id}",
                where=str(asking["tokenizer"] or "the suite's code"),
                hint="the recorded answers are to another chat template, tokenizer or version of "
                "the suite's code: name the earlier tokenizer's folder, or gate two living "
                "endpoints",
            )
