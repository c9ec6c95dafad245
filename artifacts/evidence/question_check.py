"""Checks that answers belong to the planned questions and that none was omitted.

Digests only show that answers are the recorded ones. Answers must belong to the first questions in
order. The baseline must answer the whole list; `judge_suite` refuses a candidate's answers that end
before the look that decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from eval_gates.clusters import labels_of, whole_end
from eval_gates.suites.suite_kind import kind_of
from pipeline.core.stage_record import StageRecord
from pipeline.stages.evaluate import EVALUATE
from pipeline.stages.questions import QUESTIONS

Rows = Sequence[dict[str, Any]]
_SAYS_WHICH = ("id", "cluster")


def identify(rows: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return, by row, the fields that identify its question."""
    return [{key: row[key] for key in _SAYS_WHICH if key in row} for row in rows]


def find_question_mismatches(
    role: str, record: StageRecord, answers: Rows, questions: Rows
) -> Iterator[str]:
    """Yield where a stage's answers do not match the questions, both as :func:`identify`."""
    if answers != questions[: len(answers)]:
        yield f"{role}: its answers are not those to the first of the questions"
    kept = EVALUATE.typed(record)
    if (count := kept.result.n) != len(answers):
        yield f"{role}: its record counts {count} answers, and there are {len(answers)}"
    if kept.parameters.rule is None:
        wanted = min(kept.parameters.max_questions or len(questions), len(questions))
        if kept.parameters.suite.cluster_by:
            wanted = whole_end(labels_of(questions), wanted)
        if len(answers) != wanted:
            yield f"{role}: {wanted} questions had to be asked, and {len(answers)} were answered"


def find_answer_count_mismatches(role: str, record: StageRecord, questions: Rows) -> Iterator[str]:
    """Yield differences of a stage `questions`' record from its questions."""
    told, suite = QUESTIONS.result_of(record), QUESTIONS.parameters_of(record).suite
    if told.questions != len(questions):
        yield f"{role}: its record counts {told.questions} questions of {len(questions)}"
    if suite.cluster_by and told.clusters != len(set(labels_of(questions))):
        yield f"{role}: its record counts other clusters than its questions have"
    if not suite.cluster_by and told.clusters:
        yield f"{role}: its record counts clusters, and the suite has none"
    # A quarter before revision 5 of the stage, and never less; who says more only makes the gate
    # harder to pass. The choices, that it follows from, are not among what is read of a row.
    least = kind_of(suite).guessing
    if least and not least <= told.guessing <= 1:
        yield f"{role}: its record says that guessing scores {told.guessing}"
