"""The words for a gate's numbers."""

from __future__ import annotations

from sample_reports import gate_report, speed_claim

from artifacts.gate_row import gate_row, speed_row


def test_a_margin_in_points_is_beside_the_bound() -> None:
    gate = gate_report(difference=-0.0014, bound=-0.0043, threshold=-0.0075)
    assert gate_row(gate).describe_bound("lower bound ") == "lower bound -0.43, margin -0.75"
    assert gate_row(gate, 1).describe_bound("> ") == "> -0.4, margin -0.75"  # never rounded
    assert (gate_row(gate).difference, gate_row(gate, 1).difference) == ("-0.14", "-0.1")


def test_a_recovery_margin_is_beside_the_recovery() -> None:
    gate = gate_report(threshold=0.0, margin="99 % recovery", recovery=0.9973)
    assert gate_row(gate).describe_bound("> ") == "99.7 % recovered, margin 99 % recovery"
    nothing = gate_row(gate.model_copy(update={"recovery": None}))
    assert nothing.describe_bound("> ") == "nothing recovered, margin 99 % recovery"
    assert nothing.recovery == ""


def test_the_bound_says_what_it_is_of_where_that_is_not_the_difference() -> None:
    assert gate_row(gate_report()).compared == ""
    of_share = gate_report(value="candidate - 0.99 baseline")
    assert gate_row(of_share).compared == "candidate - 0.99 baseline"


def test_a_ratio_has_a_bound_and_a_floor() -> None:
    row = speed_row(speed_claim(estimate=1.5, lower=1.25, threshold=0.85, note="of a CPU"))
    assert row.difference == "x 1.500 (1.400 to 1.600)"
    assert row.describe_bound("> ") == "> x 1.250, at least 0.85"
    assert (row.unit, row.recovery) == ("", "150.0 %")
    assert speed_row(speed_claim(lower=None)).describe_bound("> ") == "at least 1"
    assert row.reason.endswith("; of a CPU")


def test_only_an_unusual_tier_is_named() -> None:
    assert gate_row(gate_report(tier="critical")).unusual_tier == ""
    assert speed_row(speed_claim(tier="advisory")).unusual_tier == ", advisory"


def test_lengths_are_told_where_answers_are_generated() -> None:
    assert gate_row(gate_report()).lengths == ""
    sides = {
        "baseline_lengths": {"tokens": 1200.4, "truncated": 0.0, "unclosed": 0.0},
        "candidate_lengths": {"tokens": 1500.0, "truncated": 0.0312, "unclosed": 0.0},
    }
    words = gate_row(gate_report(**sides)).lengths
    assert words == "1,200 to 1,500 tokens an answer; cut off: 0.0 % to 3.1 %"
