"""One record of a gate: exact figures, its verdict in plain words, and what blocks."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from sample_reports import gate_report, speed_claim

from eval_gates.gate_result import blocks
from eval_gates.verdicts import overall


def test_a_margin_is_shown_in_full_and_a_figure_is_exact() -> None:
    gate = gate_report(threshold=-0.0075, bound=-0.1 - 0.2)
    assert gate.show_bound(1) == "> -30.0, margin -0.75"
    assert gate.bound == -0.1 - 0.2
    assert gate.show_estimate() == "-0.14"


def test_a_recovery_margin_is_shown_as_one() -> None:
    gate = gate_report(threshold=0.0, margin="99 % recovery", kept=0.9973)
    assert gate.show_bound() == "99.7 % of the baseline, margin 99 % recovery"


def test_both_sides_of_a_ratio_are_shown() -> None:
    assert speed_claim().show_sides(1) == ("2,050 tokens/s", "3,075 tokens/s")
    assert speed_claim(lower=None).show_bound() == "at least 1"


@pytest.mark.parametrize(
    ("verdict", "tier"),
    list(itertools.product(("pass", "fail", "undecided"), ("critical", "supporting", "advisory"))),
)
def test_what_blocks_is_what_the_judge_lets_block(verdict: str, tier: Any) -> None:
    # A critical gate that passed is next to it, for a p-value.
    gates = [gate_report(verdict=verdict, tier=tier), gate_report(name="code")]
    assert blocks(verdict, tier) == (overall(gates)[0] != "pass")  # type: ignore[arg-type]
    load = [speed_claim(verdict=verdict, tier=tier)]
    assert load[0].blocks == blocks(verdict, tier)  # type: ignore[arg-type]
