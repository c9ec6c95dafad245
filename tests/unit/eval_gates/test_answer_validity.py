"""An arm whose answers are none has an error with its cause, in every suite."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from eval_gates.answer_validity import check_answers
from eval_gates.rows import Answer
from prepare.errors import StageError

Rows = list[Answer]
FINE = {"truncated": 0, "unclosed": 0, "refused": 0, "thoughts_only": 0, "unread": 0}


def texts(n: int = 20, **fields: Any) -> Rows:
    """Generated answers: wrong, and all different."""
    return [
        Answer.from_row(
            {
                "id": str(number),
                "prompt_sha256": str(number),
                "answer": f"text {number}",
                "tokens": [9],
                "score": 0.0,
                **FINE,
                **fields,
            }
        )
        for number in range(n)
    ]


def choices(values: Any) -> Rows:
    return [Answer(str(n), str(n), float(n % 4 == 0), value) for n, value in enumerate(values)]


FAULTY = {
    "content is null": (texts(answer="", thoughts_only=1), "reasoning parser"),
    "empty": (texts(answer=""), "end-of-text"),
    "white space": (texts(answer=" \n"), "end-of-text"),
    "no calls either": (texts(answer="", calls=[[]]), "end-of-text"),
    "several samples": (texts(answer=["", " "], tokens=[1, 1]), "end-of-text"),
    "refused": (texts(refused=1, answer=""), "filter"),
    "refused, though scored": (texts(refused=1, score=0.3), "filter"),
    "thoughts cut off": (texts(truncated=1, unread=1, tokens=[64]), "raise max_tokens"),
    "thoughts without an end": (texts(unclosed=1, unread=1), "raise max_tokens"),
    "cut by the server": (texts(truncated=1, tokens=[16], score=0.4), "the server's own limit"),
    "no code": (texts(unread=1), "form"),
    "identical": (texts(answer="!!!!!!"), "two questions by hand"),
    "identical samples": (texts(answer=["a", "a"], tokens=[1, 1]), "two questions by hand"),
    "identical choices": (choices([[-1.0, -2.0]] * 20), "two questions by hand"),
}


@pytest.mark.parametrize(("rows", "cure"), FAULTY.values(), ids=FAULTY)
def test_an_arm_with_such_answers_is_an_error(rows: Rows, cure: str) -> None:
    for is_complete in (True, False):
        with pytest.raises(StageError) as found:
            check_answers("code", rows, max_tokens=64, is_complete=is_complete)
        assert cure in found.value.hint
        assert "of 20" in found.value.message
        assert "code" in found.value.where


@pytest.mark.parametrize(("rows", "cure"), FAULTY.values(), ids=FAULTY)
def test_half_of_them_are_judged_and_more_are_not(rows: Rows, cure: str) -> None:
    fine = texts(20) if rows[0].tokens else choices([[-float(n), -1.0] for n in range(20)])
    fine = [replace(row, prompt_sha256=f"fine {n}") for n, row in enumerate(fine)]
    check_answers("code", [*fine, *rows], max_tokens=64, is_complete=True)
    with pytest.raises(StageError):
        check_answers("code", [*fine[:19], *rows], max_tokens=64, is_complete=True)
    check_answers("code", [*fine[:19], *rows], max_tokens=64, is_complete=False)


def test_faults_of_several_kinds_count_together() -> None:
    rows = [*texts(5, answer=""), *texts(6, refused=1), *texts(9)]
    with pytest.raises(StageError, match="5 are empty") as found:
        check_answers("code", rows, max_tokens=64, is_complete=True)
    assert "filter" in found.value.hint


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param([], id="none"),
        pytest.param(texts(), id="wrong"),
        pytest.param(texts(truncated=1, tokens=[64]), id="long and read"),
        pytest.param(
            texts(truncated=1, tokens=[16], score=1.0), id="right, and said to be cut off"
        ),
        pytest.param(texts(truncated=1, tokens=[60]), id="another count of tokens"),
        pytest.param(texts(answer="", score=1.0), id="an empty answer is right"),
        pytest.param(texts(answer="", calls=[[{"name": "f"}]]), id="calls"),
        pytest.param(texts(answer="yes", score=1.0), id="the same right answer"),
        pytest.param(texts(thoughts_only=1, answer="kept thoughts", score=1.0), id="kept"),
        pytest.param(texts(3, answer="no"), id="few"),
        pytest.param(choices([[-float(n), -2.0] for n in range(20)]), id="choices"),
    ],
)
def test_answers_that_can_be_judged(rows: Rows) -> None:
    check_answers("code", rows, max_tokens=64, is_complete=True)


def test_the_first_few_answers_are_no_reason_to_end() -> None:
    check_answers("code", texts(15, answer=""), max_tokens=64, is_complete=False)
