"""Power of a policy's gate `cost`, before anything is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt

from eval_gates.statistics.cost_power import CostPower, cost_power
from eval_gates.statistics.multiplicity import gate_level
from eval_gates.suites.suite_kind import kind_of
from recipes.cost import CostGate
from recipes.generation import Generation
from recipes.policy import Policy
from recipes.schema import Family, Recipe

CAP_OVER_TOKENS = 8
"""Cap over a typical answer, if the policy does not name its length."""


@dataclass(frozen=True)
class PlannedCost:
    """Power of the gate on one suite for one recipe family."""

    suite: str
    tier: str
    family: Family
    max_ratio: float
    alpha: float
    problems: int | None
    power: CostPower | None  # None where the number of problems or the cap is not known yet
    words: str


def cost_powers(
    policy: Policy,
    recipes: Sequence[Recipe],
    counts: Mapping[str, int | None],
    level: float | None = None,
) -> tuple[PlannedCost, ...]:
    """Return the power of each gate; takes about half a second each.

    Args:
        policy: it has a ratio for each recipe's family.
        recipes: of the variants.
        counts: by suite, the number of available questions, if known.
        level: error rate of each gate; None for that of a first attempt.
    """
    if policy.cost is None:
        return ()
    alpha = gate_level(policy.alpha, policy.attempts, 1, len(recipes)) if level is None else level
    families: dict[Family, None] = {r.family: None for r in recipes if r.family != "baseline"}
    return tuple(
        _power_of(policy, policy.cost, name, family, counts.get(name), alpha)
        for name in policy.cost.suites
        for family in families
    )


def _power_of(
    policy: Policy, gate: CostGate, name: str, family: Family, count: int | None, alpha: float
) -> PlannedCost:
    suite, kind = policy.suites[name], kind_of(policy.suites[name])
    assert isinstance(suite, Generation)  # checked by the policy
    problems = min((n for n in (count, suite.questions) if n is not None), default=None)
    ratio, cap = gate.max_ratio[family], suite.max_tokens
    start = f"cost {name}, {family}: at most x {ratio:g} the tokens per solved task"
    power: CostPower | None = None
    if problems is None or not isinstance(cap, int):
        words = f"{start}; its power is known once the questions and the model's length are"
    else:
        tokens = min(gate.expected_tokens or cap / CAP_OVER_TOKENS, cap)
        power = cost_power(
            problems=problems,
            tokens=tokens,
            cap=cap,
            solved=kind.assumed_baseline,
            flips=suite.expected_flips,
            flip_size=kind.typical_change(suite),
            spread=gate.expected_spread / sqrt(suite.samples),
            max_ratio=ratio,
            alpha=alpha,
        )
        words = f"{start}; {_describe(power, problems, tokens, cap, gate)}"
    return PlannedCost(name, gate.tier, family, ratio, alpha, problems, power, words)


def _describe(power: CostPower, problems: int, tokens: float, cap: int, gate: CostGate) -> str:
    if power.fewest is None:
        return "a variant without a change cannot pass a ratio of 1 or less"
    assumed = (
        f"{problems} problems, answers of {tokens:.0f} tokens on average and at most {cap}, "
        f"ln(ratio) with a spread of {gate.expected_spread:g}"
    )
    if power.fewest > problems:
        return (
            f"cannot pass: {power.fewest} problems are needed even if no answer changes "
            f"({assumed}); take more problems, a lower max_tokens or a larger max_ratio"
        )
    return (
        f"passes {100 * power.chance_of_pass:.0f} % of the variants that cost the same, "
        f"{100 * power.chance_of_pass_at_half:.0f} % of those half-way to the limit ({assumed})"
    )
