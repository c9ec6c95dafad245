from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from eval_gates.rows import Answer, Question
from pipeline.stages.consistency import find_other_questions, find_wrong_counts
from prepare.stage import StageRecord

QUESTIONS = [Question(str(n), cluster=f"c{n // 2}") for n in range(6)]
ANSWERS = [Answer(each.id, "", 1.0, cluster=each.cluster) for each in QUESTIONS]


ASKED = {"suite": {"kind": "rouge"}, "environment": "", "max_length": 9}
RULE = {"tier": "critical", "alpha": 0.05, "margin": 0.01}


def record(stage: str, parameters: dict[str, Any], **result: Any) -> StageRecord:
    return StageRecord(
        stage=stage,
        variant="v",
        key="k",
        parameters=parameters,
        inputs={},
        input_digests={},
        result=result,
        notes=[],
        seconds=0,
        finished="",
    )


def answered(n: int, **parameters: Any) -> StageRecord:
    return record("evaluate", {**ASKED, **parameters}, n=n, metric="m", answers_digest="")


def asked(n: int, *, told: int | None = None, **parameters: Any) -> list[str]:
    suite = {"kind": "rouge", "cluster_by": "passage"}
    evaluate = answered(n if told is None else told, suite=suite, **parameters)
    return list(find_other_questions("r", evaluate, ANSWERS[:n], QUESTIONS))


@pytest.mark.parametrize(
    ("n", "fields", "faults"),
    [
        (6, {"rule": None}, []),
        (4, {"rule": None, "max_questions": 3}, []),  # ends where a cluster does
        (
            3,
            {"rule": None, "max_questions": 3},
            ["r: 4 questions had to be asked, and 3 were answered"],
        ),
        (2, {"rule": RULE}, []),
        (6, {"told": 5}, ["r: its record counts 5 answers, and there are 6"]),
    ],
)
def test_answers_are_all_that_had_to_be_asked(
    n: int, fields: dict[str, Any], faults: list[str]
) -> None:
    assert asked(n, **fields) == faults


def test_another_order() -> None:
    evaluate = answered(6, rule=RULE)
    (fault,) = find_other_questions("r", evaluate, ANSWERS[::-1], QUESTIONS)
    assert "not those to the first of the questions" in fault


@pytest.mark.parametrize(
    "changes", [{"group": "4 tools"}, {"cluster": "c9"}, {"part": "it"}, {"id": "9"}]
)
def test_an_answer_that_is_labelled_otherwise_than_its_question(changes: dict[str, str]) -> None:
    """A group decides which gate counts it."""
    answers = [replace(ANSWERS[0], **changes), *ANSWERS[1:]]
    (fault,) = find_other_questions("r", answered(6, rule=RULE), answers, QUESTIONS)
    assert "not those to the first of the questions" in fault


@pytest.mark.parametrize(
    ("kind", "result", "fault"),
    [
        ("rouge", {"questions": 6, "clusters": 3}, ""),
        ("rouge", {"questions": 6, "clusters": 2}, "counts other clusters"),
        ("rouge", {"questions": 7, "clusters": 3}, "counts 7 questions of 6"),
        ("mmlu", {"questions": 6, "clusters": 3, "guessing": 0.25}, ""),
        ("mmlu", {"questions": 6, "clusters": 3, "guessing": 0.2667}, ""),
        ("mmlu", {"questions": 6, "clusters": 3, "guessing": 0.0}, "guessing scores 0.0"),
        ("mmlu", {"questions": 6, "clusters": 3, "guessing": float("nan")}, "guessing scores nan"),
    ],
)
def test_what_the_questions_are_said_to_be(kind: str, result: dict[str, Any], fault: str) -> None:
    laid_out = record(
        "questions",
        {
            "suite": {"kind": kind, "cluster_by": "passage"},
            "source": {"kind": "builtin"},
            "seed": 0,
        },
        **{"questions_digest": "", "guessing": 0.0, **result},
    )
    assert fault in "\n".join(find_wrong_counts("r", laid_out, QUESTIONS))
    assert bool(fault) == bool(list(find_wrong_counts("r", laid_out, QUESTIONS)))
