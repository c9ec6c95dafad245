"""Both sides' scores by subject or member."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval_gates.quality_result import report_groups
from eval_gates.rows import Answer


def rows(*answers: tuple[str, float]) -> list[Answer]:
    return [Answer("a", "p", score, group=name) for name, score in answers]


def group_of(row: Answer) -> str:
    return row.group


def test_a_mean_is_over_the_groups_questions() -> None:
    before = rows(("law", 1.0), ("math", 0.0), ("law", 0.5))
    after = rows(("law", 1.0), ("math", 1.0), ("law", 0.0))
    law, math = report_groups(before, after, group_of)
    assert (law.group, law.n, law.baseline, law.candidate, law.flips) == ("law", 2, 0.75, 0.5, 1)
    assert (math.group, math.n, math.baseline, math.candidate, math.flips) == ("math", 1, 0, 1, 1)
    assert law.is_subject


def test_other_questions_cannot_be_paired() -> None:
    with pytest.raises(ValueError, match="shorter"):
        report_groups(rows(("law", 1.0)), [], group_of)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 1), st.floats(0, 1))))
def test_all_questions_are_counted_once(answers: list[tuple[str, float, float]]) -> None:
    before = rows(*((name, first) for name, first, _ in answers))
    after = rows(*((name, second) for name, _, second in answers))
    found = report_groups(before, after, group_of)
    assert sum(each.n for each in found) == len(answers)
    assert sum(each.flips for each in found) == sum(a != b for _, a, b in answers)
    assert sum(each.n * each.candidate for each in found) == pytest.approx(
        sum(second for _, _, second in answers)
    )
