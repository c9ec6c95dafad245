"""What is known of questions by suite, from their numbers alone."""

from __future__ import annotations

from collections.abc import Mapping

from eval_gates.suites.suite_kind import LoggedAnswers
from pipeline.plan.known_questions import KnownQuestions


def known_by_suite(
    numbers: Mapping[str, int | None], logged: LoggedAnswers | None = None
) -> dict[str, KnownQuestions]:
    """So many questions, or clusters, of each suite; all with these answers of a log."""
    return {
        name: KnownQuestions(questions=number, clusters=number, logged=logged)
        for name, number in numbers.items()
    }
