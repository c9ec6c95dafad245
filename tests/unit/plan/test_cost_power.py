"""Planned power of the gate `cost`."""

from __future__ import annotations

import numpy as np
import pytest
from fake_run import policy as fake_policy
from fake_run import recipe
from listener import Listener

from eval_gates.statistics.cost import CostClaim, Work
from eval_gates.statistics.cost_power import PROBLEM_SPREAD, cost_power
from pipeline.core.errors import UsageError
from pipeline.plan.cost_power import (
    PlannedCost,
    check_costs_counted,
    check_costs_decidable,
    cost_powers,
)
from pipeline.stages.questions import QuestionsResult
from recipes.policy import Policy


def policy(max_tokens: int | str = 512, ratio: float = 1.3, tier: str = "critical") -> Policy:
    plain = fake_policy(test="fixed", max_tokens=max_tokens).model_dump()
    cost = {"suites": ["code"], "max_ratio": {"fp8": ratio}, "expected_tokens": 100, "tier": tier}
    return Policy.model_validate({**plain, "cost": cost})


def planned(
    count: int | None, max_tokens: int | str = 512, ratio: float = 1.3, length: int | None = None
) -> PlannedCost:
    """Return the power of one gate."""
    asked = policy(max_tokens, ratio)
    (found,) = cost_powers(asked, [recipe("one")], {"code": count}, max_length=length)
    return found


def test_more_problems_and_a_lower_cap_have_more_power() -> None:
    found = [planned(count, cap).power for count, cap in ((164, 512), (600, 512), (600, 4096))]
    few, many, long = (each.chance_of_pass for each in found if each is not None)
    assert few < many > long
    assert many > 0.95


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (planned(20), "problems are needed"),
        (planned(164, "model", length=100_000), "at most 100000"),
        (planned(500, ratio=0.9), "cannot pass"),
    ],
)
def test_what_cannot_pass_is_refused(found: PlannedCost, words: str) -> None:
    assert words in found.words
    with pytest.raises(UsageError) as caught:
        check_costs_decidable([found], Listener())
    assert caught.value.where == "policy key cost.max_ratio.fp8, suite code"
    assert "max_ratio" in str(caught.value.hint)
    check_costs_decidable([planned(600), planned(None)], Listener())


def test_an_advisory_gate_that_cannot_pass_is_noted() -> None:
    listener = Listener()
    asked = policy(tier="advisory")
    check_costs_decidable(cost_powers(asked, [recipe("one")], {"code": 20}), listener)
    (note,) = listener.notes
    assert "advisory" in note


def laid_out(output: str | None, questions: int = 600) -> dict[str, QuestionsResult]:
    found = QuestionsResult(
        questions=questions, questions_digest="0", guessing=0, output_type=output
    )
    return {"code": found}


def test_a_task_of_choices_has_no_tokens_to_count() -> None:
    for output in (None, "generate_until"):
        check_costs_counted(policy(), [recipe("one")], laid_out(output), Listener())
    with pytest.raises(UsageError, match="multiple_choice") as caught:
        check_costs_counted(policy(), [recipe("one")], laid_out("multiple_choice"), Listener())
    assert caught.value.where == "policy key cost.suites: code"
    with pytest.raises(UsageError, match="problems are needed"):
        check_costs_counted(policy(), [recipe("one")], laid_out(None, 20), Listener())


@pytest.mark.parametrize(("count", "cap"), [(None, 512), (164, "model")])
def test_what_is_not_known_yet_has_no_number(count: int | None, cap: int | str) -> None:
    assert planned(count, cap).power is None


def test_simulated_runs_pass_as_often() -> None:
    assumed = {"tokens": 100.0, "cap": 400, "solved": 0.7, "spread": 0.4}
    power = cost_power(
        problems=300, flips=0.1, flip_size=1.0, max_ratio=1.15, alpha=0.05, **assumed
    )
    rng, passed, replays = np.random.default_rng(5), 0, 50
    for _ in range(replays):
        before = 100 * np.exp(PROBLEM_SPREAD * rng.normal(size=300) - PROBLEM_SPREAD**2 / 2)
        after = before * np.exp(0.4 * rng.normal(size=300) - 0.08)
        right = (rng.random(300) < 0.7).astype(float)
        chance = np.where(right == 1, 0.1 / 1.4, 0.1 / 0.6)
        other = np.where(rng.random(300) < chance, 1 - right, right)
        sides = [
            Work(np.minimum(tokens, 400), solved, 400)
            for tokens, solved in ((before, right), (after, other))
        ]
        passed += CostClaim(sides[0], sides[1], 0.05).holds(1.15)
    assert 0.3 < power.chance_of_pass < 0.98
    assert passed / replays == pytest.approx(power.chance_of_pass, abs=0.17)
