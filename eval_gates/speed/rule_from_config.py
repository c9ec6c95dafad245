"""Performance gate rules from plain data, as in a stage's parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from eval_gates.speed.screening import ScreeningRule
from eval_gates.speed.slo import SloRule
from eval_gates.speed.throughput_ratio import ThroughputRatioRule
from recipes.speed import ClaimKind

Rule = ThroughputRatioRule | SloRule
RULES: Mapping[ClaimKind, type[Rule]] = {"ratio": ThroughputRatioRule, "slo": SloRule}


def parse_rule(claim: ClaimKind, data: Mapping[str, Any]) -> Rule:
    """Parse a rule; raises ValidationError."""
    return RULES[claim].model_validate(dict(data))


def parse_measurement_rule(
    measured: ClaimKind | Literal["screening"], data: Mapping[str, Any]
) -> Rule | ScreeningRule:
    """Parse a gate's rule, or the stopping rule of a screening, which decides nothing."""
    return (
        ScreeningRule.model_validate(dict(data))
        if measured == "screening"
        else parse_rule(measured, data)
    )
