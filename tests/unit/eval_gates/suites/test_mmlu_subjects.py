"""MMLU's scores by subject and by group; the end-to-end test compares the groups with lm-eval's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval_gates.suites.mmlu_subjects import GROUP_OF, GROUPS, UNKNOWN_GROUP, Score, score_by_group


def test_every_subject_is_in_one_group() -> None:
    assert len(GROUP_OF) == sum(len(subjects) for subjects in GROUPS.values()) == 57
    assert {group: len(subjects) for group, subjects in GROUPS.items()} == {
        "STEM": 19,
        "humanities": 13,
        "social sciences": 12,
        "other": 13,
    }


def row(subject: str, score: float) -> dict[str, object]:
    return {"subject": subject, "score": score, "answer": [-1.0]}


def test_a_group_weighs_questions_not_subjects() -> None:
    rows = [row("virology", 1.0), *[row("marketing", 0.0)] * 3, row("anatomy", 1.0)]
    scores = score_by_group(rows)
    assert scores.subjects == {
        "anatomy": Score(1, 1.0),
        "marketing": Score(3, 0.0),
        "virology": Score(1, 1.0),
    }
    assert scores.groups == {"STEM": Score(1, 1.0), "other": Score(4, 0.25)}
    assert list(scores.groups) == ["STEM", "other"], "in the groups' own order"


def test_subjects_of_the_users_own_are_kept_apart() -> None:
    scores = score_by_group([row("our_products", 0.5), row("virology", 1.0)])
    assert scores.groups == {"other": Score(1, 1.0), UNKNOWN_GROUP: Score(1, 0.5)}
    assert scores.subjects["our_products"] == Score(1, 0.5)


def test_nothing_was_asked() -> None:
    assert score_by_group([]) == ({}, {})


@given(
    st.lists(st.tuples(st.sampled_from(["virology", "anatomy", "mine", "law"]), st.floats(0, 1)))
)
def test_all_questions_are_counted_once(answers: list[tuple[str, float]]) -> None:
    scores = score_by_group([row(*answer) for answer in answers])
    for found in (scores.subjects, scores.groups):
        assert sum(score.n for score in found.values()) == len(answers)
        assert sum(score.n * score.score for score in found.values()) == pytest.approx(
            sum(score for _, score in answers)
        )
