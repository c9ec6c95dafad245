"""Whether answers are those to the questions that were laid out, and none was left out.

Digests say that answers are those that were recorded. These say that they belong to the first of
the questions, in the order of asking; and that all were asked where nothing could end the asking,
since a test with a fixed number of questions holds for no number that was chosen afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from eval_gates.clusters import labels_of, whole_end
from eval_gates.suites.guessing import guessing
from eval_gates.suites.mmlu import GUESSING, scored_choices
from pipeline.core.stage_record import StageRecord

Rows = Sequence[dict[str, Any]]
_SAYS_WHICH = ("id", "cluster")


def named(rows: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each row what says which question it is."""
    return [{key: row[key] for key in _SAYS_WHICH if key in row} for row in rows]


def misasked(role: str, record: StageRecord, answers: Rows, questions: Rows) -> Iterator[str]:
    """In what the answers of a stage are not those to the questions, in words.

    Args:
        role: of the stage, for messages.
        record: of the stage.
        answers: as :func:`named`.
        questions: all, as :func:`named`.
    """
    if answers != questions[: len(answers)]:
        yield f"{role}: its answers are not those to the first of the questions"
    if (told := record.result["n"]) != len(answers):
        yield f"{role}: its record counts {told} answers, and there are {len(answers)}"
    if record.parameters.get("rule") is None:
        wanted = min(record.parameters.get("upto") or len(questions), len(questions))
        if record.parameters["suite"].get("cluster"):
            wanted = whole_end(labels_of(questions), wanted)
        if len(answers) != wanted:
            yield f"{role}: {wanted} questions had to be asked, and {len(answers)} were answered"


def miscounted(
    role: str, record: StageRecord, questions: Rows, whole: Iterable[dict[str, Any]]
) -> Iterator[str]:
    """In what the record of a stage `questions` says what its questions do not, in words.

    Args:
        role: of the stage, for messages.
        record: of the stage.
        questions: all, as :func:`named`.
        whole: their rows with all that they have; read only where choices are scored.
    """
    told = record.result
    if told["questions"] != len(questions):
        yield f"{role}: its record counts {told['questions']} questions of {len(questions)}"
    suite = record.parameters["suite"]
    if suite.get("cluster") and told["clusters"] != len(set(labels_of(questions))):
        yield f"{role}: its record counts other clusters than its questions have"
    if not suite.get("cluster") and told.get("clusters"):
        yield f"{role}: its record counts clusters, and the suite has none"
    if suite["kind"] == "mmlu" and not guesses_right(told["guessing"], suite, whole):
        yield f"{role}: its record says that guessing scores {told['guessing']}"


def guesses_right(told: float, suite: dict[str, Any], rows: Iterable[dict[str, Any]]) -> bool:
    """Whether guessing scores that on MMLU's questions.

    Before revision 5 of the stage it was taken to be a quarter, which is what it scores at least.
    """
    if told == GUESSING:
        return True
    questions = list(rows)
    try:
        scored = guessing(questions, scored_choices(questions, suite["form"]))
    except (KeyError, TypeError):  # they are no such questions
        return False
    return math.isclose(told, scored, abs_tol=1e-9)
