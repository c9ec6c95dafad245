"""Rule of a suite's gate."""

from __future__ import annotations

from pydantic import Field

from eval_gates.gate_result import Tier
from eval_gates.statistics.comparison import Comparison
from eval_gates.stopping import StoppingRule, comparison_of
from pipeline.core.record import Record
from recipes.policy import AnySuite, Margin
from recipes.schema import Family


class GateRule(Record):
    """Settings that decide a gate."""

    tier: Tier
    margin: Margin
    alpha: float = Field(description="level: the policy's alpha over the variants")

    @property
    def comparison(self) -> Comparison:
        return comparison_of(self.margin)

    def stopping(self, *, can_pass: bool) -> StoppingRule:
        return StoppingRule(self.comparison, self.alpha, can_pass)


def gate_rule_of(suite: AnySuite, family: Family, alpha: float) -> GateRule:
    """Return the rule of a policy's suite."""
    return GateRule(tier=suite.tier, margin=suite.margins[family], alpha=alpha)
