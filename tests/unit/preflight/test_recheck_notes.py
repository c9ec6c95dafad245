"""What `prepare plan` says of later rechecks."""

from __future__ import annotations

from typing import Any

import pytest
from fake_run import policy, recipe
from known_by_suite import known_by_suite

from pipeline.preflight.power import decidable_margin, recheck_notes
from recipes.policy import EngineRule, Margin

FP8 = recipe("one")


def notes(questions: int | None, named: float | None = None, **changes: Any) -> list[str]:
    wanted = policy(**changes)
    if named is not None:
        rule = EngineRule(margins={"code": {"fp8": Margin(points=named)}})
        wanted = wanted.model_copy(update={"engine": rule})
    return list(recheck_notes(wanted, [FP8], known_by_suite({"code": questions})))


def test_an_early_decision_may_leave_too_few_answers() -> None:
    (note,) = notes(96)
    assert note.startswith("code: fp8 may be decided after 24 answers")
    assert notes(2_000) == []
    assert notes(None) == []


def test_a_margin_that_the_policy_names_is_refused_then() -> None:
    (note,) = notes(400, named=0.01)
    assert "would refuse" in note
    assert notes(400, named=0.1) == []


@pytest.mark.parametrize(
    ("answers", "margin"), [(2_000, Margin(points=0.05)), (40, Margin(points=0.1))]
)
def test_the_margin_by_the_recorded_answers(answers: int, margin: Margin) -> None:
    assert decidable_margin(policy(), "code", "fp8", 0.05, answers) == margin


def test_half_of_a_recovery() -> None:
    assert Margin(recovery=0.98).half == Margin(recovery=0.99)


def test_a_margin_of_no_suite_is_refused() -> None:
    own = policy().model_dump(mode="json")
    own["engine"] = {"margins": {"other": {"fp8": 0.1}}}
    with pytest.raises(ValueError, match=r"engine\.margins"):
        type(policy()).model_validate(own)
