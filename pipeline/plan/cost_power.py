"""Power of a policy's gate `cost`, before anything is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt

from eval_gates.statistics.cost_power import CostPower, cost_power
from eval_gates.statistics.multiplicity import gate_level
from eval_gates.suites.suite_kind import kind_of
from pipeline.core.errors import UsageError
from pipeline.core.events import Progress
from pipeline.stages.questions import QuestionsResult
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

    def refusal(self) -> UsageError | None:
        """Return an error if the gate could not pass a variant with the baseline's answers."""
        if self.power is None or self.problems is None:
            return None
        if self.power.fewest is not None and self.power.fewest <= self.problems:
            return None
        return UsageError(
            self.words,
            where=f"policy key cost.max_ratio.{self.family}, suite {self.suite}",
            hint="give more problems, a lower max_tokens or a larger max_ratio; write "
            "cost.expected_tokens if answers are longer than assumed; or 'tier: advisory'",
        )


def cost_powers(
    policy: Policy,
    recipes: Sequence[Recipe],
    counts: Mapping[str, int | None],
    level: float | None = None,
    max_length: int | None = None,
) -> tuple[PlannedCost, ...]:
    """Return the power of each gate; takes about half a second each.

    Args:
        policy: it has a ratio for each recipe's family.
        recipes: of the variants.
        counts: by suite, the number of available questions, if known.
        level: error rate of each gate; None for that of a first attempt.
        max_length: tokens of a prompt and its answer; None if not known yet.
    """
    if policy.cost is None:
        return ()
    alpha = gate_level(policy.alpha, policy.attempts, 1, len(recipes)) if level is None else level
    families: dict[Family, None] = {r.family: None for r in recipes if r.family != "baseline"}
    return tuple(
        _power_of(policy, policy.cost, name, family, counts.get(name), alpha, max_length)
        for name in policy.cost.suites
        for family in families
    )


def check_costs_decidable(costs: Sequence[PlannedCost], progress: Progress) -> None:
    """Raise UsageError for a gate that cannot pass; note it if it is advisory."""
    for cost in costs:
        refusal = cost.refusal()
        if refusal is not None and cost.tier != "advisory":
            raise refusal
        if refusal is not None:
            progress.note(f"{refusal.message}; it is advisory, so this blocks nothing")


def check_costs_counted(
    policy: Policy,
    recipes: Sequence[Recipe],
    laid_out: Mapping[str, QuestionsResult],
    progress: Progress,
) -> None:
    """Check the gates again with the prepared questions.

    Raises:
        UsageError: a gate cannot pass, or a task of lm-eval generates no answers.
    """
    for name in policy.cost.suites if policy.cost is not None else ():
        output = laid_out[name].output_type if name in laid_out else None
        if output not in (None, "generate_until"):
            raise UsageError(
                f"the suite '{name}' generates no answers (lm-eval's output_type is {output}), so "
                "it has no tokens to count",
                where=f"policy key cost.suites: {name}",
                hint="remove it there, or name a suite such as gsm8k, or a task whose answers are "
                "generated",
            )
    counts = {name: result.units for name, result in laid_out.items()}
    check_costs_decidable(cost_powers(policy, recipes, counts), progress)


def _power_of(
    policy: Policy,
    gate: CostGate,
    name: str,
    family: Family,
    count: int | None,
    alpha: float,
    max_length: int | None,
) -> PlannedCost:
    suite, kind = policy.suites[name], kind_of(policy.suites[name])
    assert isinstance(suite, Generation)  # checked by the policy
    problems = min((n for n in (count, suite.questions) if n is not None), default=None)
    ratio, cap = gate.max_ratio[family], suite.max_tokens
    if isinstance(max_length, int):
        cap = min(cap, max_length) if isinstance(cap, int) else max_length
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
            f"cannot pass: {power.fewest} problems are needed even if no answer changes ({assumed})"
        )
    return (
        f"passes {100 * power.chance_of_pass:.0f} % of the variants that cost the same, "
        f"{100 * power.chance_of_pass_at_half:.0f} % of those half-way to the limit ({assumed})"
    )
