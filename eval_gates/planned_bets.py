"""Planned bet of each sequential gate, fixed before any question."""

from __future__ import annotations

from eval_gates.statistics.planned_bet import planned_bet
from eval_gates.stopping import comparison_of
from eval_gates.suites.suite_kind import kind_of
from recipes.policy import AnySuite
from recipes.schema import Family


def planned_bet_of(suite: AnySuite, family: Family) -> float | None:
    """Return one gate's bet, as a share of the largest legal one; None for a fixed test."""
    if suite.test == "fixed":
        return None
    kind, comparison = kind_of(suite), comparison_of(suite.margins[family])
    return planned_bet(
        comparison, suite.expected_flips, kind.typical_change(suite), kind.assumed_baseline
    )
