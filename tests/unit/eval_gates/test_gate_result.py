"""A gate's row: what a table shows of it, and what a pass has to name."""

from __future__ import annotations

import pytest
from sample_reports import gate_report, speed_gate_report

from eval_gates.gate_result import not_shown, passed_on
from eval_gates.quality_result import KEPT_SHARE
from recipes.config_model import Tier


@pytest.mark.parametrize("verdict", ["pass", "fail", "undecided"])
def test_an_advisory_gate_is_only_shown(verdict: str) -> None:
    gate = gate_report(verdict=verdict, tier="advisory")
    assert gate.cells()["verdict"] == "shown only"
    assert not gate.blocks
    assert passed_on([gate]) == ""


@pytest.mark.parametrize(
    ("tier", "estimate", "is_named"),
    [
        ("advisory", -0.009, False),
        ("advisory", -0.011, True),
        ("supporting", -0.009, True),
        ("supporting", -0.011, True),
    ],
)
def test_an_undecided_gate_beside_a_pass(tier: Tier, estimate: float, is_named: bool) -> None:
    """An advisory gate is named if the estimate itself lost more than the margin of one point."""
    gate = gate_report(name="code", verdict="undecided", tier=tier, estimate=estimate)
    assert ("code" in not_shown([gate_report(), gate])) is is_named


def test_what_failed_is_told_apart_from_what_was_not_shown() -> None:
    undecided = gate_report(name="code", verdict="undecided", tier="supporting")
    failed = gate_report(name="ifeval", verdict="fail", tier="advisory", estimate=-0.2)
    other, worse = not_shown([undecided, failed]).split("; failed on ")
    assert "not shown on code" in other
    assert worse.startswith("ifeval")


def test_a_margin_is_told_in_the_gates_unit() -> None:
    assert gate_report().show_bound().endswith("margin -1")
    assert speed_gate_report().show_bound().endswith("at least 1")


@pytest.mark.parametrize(("direction", "sign"), [("above", ">"), ("below", "<")])
def test_a_bound_has_the_sign_of_where_it_must_be(direction: str, sign: str) -> None:
    gate = gate_report(direction=direction)
    cells = gate.cells()
    assert [cells[name].split()[0] for name in ("bound", "needed")] == [sign, sign]
    assert f"({sign} " in gate.show_difference()


def test_lost_conversations_are_told_in_tokens() -> None:
    gate = gate_report(
        name="logs",
        metric=KEPT_SHARE,
        verdict="fail",
        candidate=0.823,
        estimate=-0.166,
        allowed=-0.12,
    )
    assert gate.shortfall == (
        "logs (keeps 82.3 % of the baseline's next tokens, 16.6 points fewer; "
        "at most 12 may be lost)"
    )
    assert KEPT_SHARE not in gate.title


def test_both_sides_share_their_unit() -> None:
    assert gate_report(baseline=0.5, candidate=0.25).cells()["baseline to candidate"] == (
        "50.00 to 25.00 %"
    )
    cells = speed_gate_report().cells()
    assert cells["baseline to candidate"].count("tokens/s") == 1
    assert cells["needed"].startswith("> ")
