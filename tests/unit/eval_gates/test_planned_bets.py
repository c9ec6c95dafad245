"""Which bets the plan of a policy calls best; what is told is the power of the gate with them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from eval_gates.planned_bets import planned_bet_of
from eval_gates.statistics.comparison import Comparison
from eval_gates.statistics.sequential import log_evidence
from pipeline.plan.gate_power import policy_power
from recipes import catalog
from recipes.policy import Policy


def policy(**changes: Any) -> Policy:
    suite = {"kind": "humaneval", "margins": {"fp8": 0.05}, "expected_flips": 0.06, **changes}
    return Policy.model_validate(
        {
            "name": "p",
            "summary": "s",
            "suites": {"mine": suite},
        }
    )


def test_a_carried_policys() -> None:
    suites = catalog.load_policy("default").suites
    assert {name: planned_bet_of(suite, "fp8") for name, suite in suites.items()} == {
        "mmlu": 0.14,
        "code": None,
        "rouge": 0.98,
    }


@pytest.mark.parametrize(
    ("changes", "bet"),
    [
        ({}, 0.56),
        ({"expected_flips": 0.12}, 0.36),
        ({"margins": {"fp8": {"recovery": 0.9}}}, 0.57),
        ({"samples": 16, "sampling": "model"}, 0.98),
        ({"test": "fixed"}, None),
    ],
)
def test_it_goes_by_margin_flips_and_how_far_a_score_moves(
    changes: dict[str, Any], bet: float | None
) -> None:
    assert planned_bet_of(policy(**changes).suites["mine"], "fp8") == bet


def test_the_power_that_is_told_is_that_of_the_gate_with_its_bet() -> None:
    """And is not that of one with an even stake."""
    wanted = policy()
    (told,) = policy_power(wanted, [catalog.load_recipe("fp8-dynamic")], {"mine": 164})
    values = np.random.default_rng(5).choice(
        [-1.0, 1.0, 0.0], size=(3000, 164), p=[0.03, 0.03, 0.94]
    )

    def passes(bet: float | None) -> float:
        log_pass, _ = log_evidence(values, Comparison.points(0.05), None, bet)
        return float((log_pass >= -math.log(told.alpha)).any(axis=1).mean())

    assert told.chance_of_pass is not None
    assert told.chance_of_pass == pytest.approx(passes(0.56), abs=0.06)
    assert told.chance_of_pass > passes(None) + 0.04
