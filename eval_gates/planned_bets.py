"""The bet that each sequential gate's plan calls best, and that has half of its stake.

Fixed before any question is asked, by the margin, `expected_flips` and the kind of suite. It
stands in the rule by which a suite is asked and in the parameters of the verdict, so that asking,
verdict and `prepare verify` use the same bet.
"""

from __future__ import annotations

from typing import Literal

from eval_gates.statistics.planned_bet import planned_bet
from eval_gates.stopping import comparison_of
from recipes.policy import AnySuite, CodeSuite, Policy
from recipes.schema import Family

# How far a score moves when it moves, for planning: that of a summary, and of a problem of which
# several answers are drawn (a standard deviation of 0.2 where 55 % of the problems' scores move).
# Anything else is right or wrong.
TYPICAL_CHANGE, TYPICAL_CHANGE_OF_SAMPLES = 0.1, 0.27
# What a recovery margin is planned with, since no baseline has answered yet.
ASSUMED_BASELINE = {"rouge": 0.3}
ASSUMED_BASELINE_ELSE = 0.5


def planned_bet_of(suite: AnySuite, family: Family) -> float | None:
    """The bet of one gate, as a share of the largest legal one; None for a fixed test."""
    if suite.test == "fixed":
        return None
    comparison = comparison_of(suite.margins[family])
    return planned_bet(
        comparison, suite.expected_flips, typical_change(suite), assumed_baseline(suite)
    )


def planned_bets_of(policy: Policy, family: Family | Literal["baseline"]) -> dict[str, float]:
    """By suite, the bets of all sequential gates on variants of a family; none on a baseline."""
    if family == "baseline":
        return {}
    bets = {name: planned_bet_of(suite, family) for name, suite in policy.suites.items()}
    return {name: bet for name, bet in bets.items() if bet is not None}


def typical_change(suite: AnySuite) -> float:
    """How far a score is expected to move when it moves; under 1 where scores are graded."""
    if suite.kind == "rouge":
        return TYPICAL_CHANGE
    if isinstance(suite, CodeSuite) and suite.samples > 1:
        return TYPICAL_CHANGE_OF_SAMPLES
    return 1.0


def assumed_baseline(suite: AnySuite) -> float:
    """The baseline's mean score that is expected where a margin is a share of it."""
    return ASSUMED_BASELINE.get(suite.kind, ASSUMED_BASELINE_ELSE)
