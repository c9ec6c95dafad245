"""Verdicts with answers whose choice an endpoint's list of tokens does not show."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from kept_answers import MMLU, answers, judged, judged_rows

from eval_gates.chance_baselines import UNDECIDABLE
from eval_gates.suites.chat_form import count_against


def undecided(
    rows: list[dict[str, Any]], side: str, numbers: Container[int]
) -> list[dict[str, Any]]:
    """The rows, some of them undecidable, as a side's worker stores them."""
    marked = [{**row, UNDECIDABLE: True} if n in numbers else row for n, row in enumerate(rows)]
    return count_against(marked, side)


def test_undecidable_answers_are_stated_and_do_not_pass() -> None:
    same = [1.0, 1.0, 0.0, 1.0] * 100
    assert judged(same, same, MMLU).verdict == "pass"
    few = judged_rows(
        undecided(answers(same), "baseline", range(2)),
        undecided(answers(same), "candidate", range(3)),
        MMLU,
    )
    assert (few.verdict, few.undecidable) == ("pass", (2, 3))
    assert "2 (baseline) and 3 (candidate) of 200" in few.reason
    many = judged_rows(answers(same), undecided(answers(same), "candidate", range(200)), MMLU)
    assert (many.verdict, many.undecidable) == ("undecided", (0, 100))
    assert "would not fail" in many.reason


def test_a_loss_that_is_none_of_the_undecidable_answers_fails() -> None:
    before, after = [1.0] * 400, [1.0, 0.0] * 200
    found = judged_rows(
        undecided(answers(before), "baseline", range(4)),
        undecided(answers(after), "candidate", range(4)),
        MMLU,
    )
    assert (found.verdict, found.undecidable) == ("fail", (4, 4))


def test_a_baseline_that_shows_no_choice_is_no_evidence_of_knowledge() -> None:
    """Its answers count as right against the candidate, and not against guessing."""
    right = [1.0] * 400
    found = judged_rows(undecided(answers(right), "baseline", range(400)), answers(right), MMLU)
    assert found.verdict == "undecided"
    assert "insensitive" in found.reason


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.sampled_from("bco")), min_size=1))
def test_any_truth_behind_undecidable_answers_is_at_least_as_good(
    cases: list[tuple[bool, bool, str]],
) -> None:
    """The compared difference is a lower bound of the true one."""
    rows = {
        side: undecided(
            [{"score": float(each[place])} for each in cases],
            side,
            [n for n, each in enumerate(cases) if each[2] == side[0]],
        )
        for place, side in enumerate(("baseline", "candidate"))
    }
    for n, (before, after, _) in enumerate(cases):
        shown = rows["candidate"][n]["score"] - rows["baseline"][n]["score"]
        assert shown <= float(after) - float(before)
