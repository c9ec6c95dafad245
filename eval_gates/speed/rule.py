"""The rule of a claim on speed from plain data, as a stage's parameters have it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from eval_gates.speed.race import RaceRule
from eval_gates.speed.ratio import RatioRule
from eval_gates.speed.slo import SloRule
from recipes.speed import ClaimKind

Rule = RatioRule | SloRule
RULES: Mapping[ClaimKind, type[Rule]] = {"ratio": RatioRule, "slo": SloRule}


def rule_of(claim: ClaimKind, data: Mapping[str, Any]) -> Rule:
    """The rule; raises ValidationError where the data is none."""
    return RULES[claim].model_validate(dict(data))


def measuring_rule(
    measured: ClaimKind | Literal["race"], data: Mapping[str, Any]
) -> Rule | RaceRule:
    """As `rule_of`; of a race, which claims nothing, what ends measuring."""
    return RaceRule.model_validate(dict(data)) if measured == "race" else rule_of(measured, data)
