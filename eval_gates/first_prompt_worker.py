"""Worker: renders a suite's first question for a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eval_gates import questions_worker as questions
from eval_gates.answer_log import QUESTIONS_FILE
from eval_gates.evaluate_worker import OpenSuite, open_client, template_of
from prepare.events import Progress


def run(spec: dict[str, Any], progress: Progress, output: Path) -> dict[str, Any]:
    """Return the prompt, the choices if any, and the tools.

    `spec` is that of `questions` and `evaluate`.
    """
    questions.run(spec, progress, output)
    suite = OpenSuite(spec["suite"], output / QUESTIONS_FILE)
    client = open_client(spec, suite, lambda _: None, progress)
    (question,) = suite.render(range(1), template_of(client))
    return {
        "id": question.id,
        "prompt": client.shown(question),
        "choices": list(question.continuations),
        "contexts": list(question.contexts),
        "settings": {**suite.settings, **question.generate},
    }
