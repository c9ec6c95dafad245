"""The rule of a claim on speed from plain data, as a stage's parameters have it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from eval_gates.speed.screening import ScreeningRule
from eval_gates.speed.slo import SloRule
from eval_gates.speed.throughput_ratio import ThroughputRatioRule
from recipes.speed import ClaimKind

Rule = ThroughputRatioRule | SloRule
RULES: Mapping[ClaimKind, type[Rule]] = {"ratio": ThroughputRatioRule, "slo": SloRule}


def rule_of(claim: ClaimKind, data: Mapping[str, Any]) -> Rule:
    """The rule; raises ValidationError where the data is none."""
    return RULES[claim].model_validate(dict(data))


def measuring_rule(
    measured: ClaimKind | Literal["screening"], data: Mapping[str, Any]
) -> Rule | ScreeningRule:
    """As `rule_of`; of a race, which claims nothing, what ends measuring."""
    return (
        ScreeningRule.model_validate(dict(data))
        if measured == "screening"
        else rule_of(measured, data)
    )
