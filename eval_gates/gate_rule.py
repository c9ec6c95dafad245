"""Rule of a suite's gate: planning writes it, verification recomputes it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from eval_gates.gate_report import Tier
from eval_gates.planned_bets import planned_bet_of
from eval_gates.statistics.comparison import Comparison
from eval_gates.stopping import StoppingRule, comparison_of
from pipeline.core.record import Record
from recipes.policy import AnySuite, Margin
from recipes.schema import Family


class GateRule(Record):
    """Settings that decide a gate, and so end its questions."""

    tier: Tier
    test: Literal["sequential", "fixed"]
    about: Literal["population", "benchmark"]
    margin: Margin
    alpha: float = Field(description="level, of the attempt and the measurement")
    planned_bet: float | None = Field(
        None, description="has half of the stake against 'inferior'; None of a fixed test"
    )
    time_budget_minutes: float | None = None
    cap: int | None = Field(
        None, description="what a time budget left open, a higher cap continues"
    )

    @property
    def comparison(self) -> Comparison:
        return comparison_of(self.margin)

    def population(self, available: int) -> int | None:
        """Size of the benchmark, in questions or clusters, if that is the estimand."""
        return available if self.about == "benchmark" else None

    def stopping(self, available: int) -> StoppingRule | None:
        if self.test == "fixed":
            return None
        population = self.population(available)
        return StoppingRule(self.comparison, self.alpha, population, self.planned_bet)


def gate_rule_of(suite: AnySuite, family: Family, alpha: float) -> GateRule:
    """Return the rule of a policy's suite at level `alpha`."""
    return GateRule(
        tier=suite.tier,
        test=suite.test,
        about=suite.about,
        margin=suite.margins[family],
        alpha=alpha,
        planned_bet=planned_bet_of(suite, family),
        time_budget_minutes=suite.time_budget_minutes,
        cap=suite.questions if suite.time_budget_minutes is not None else None,
    )
