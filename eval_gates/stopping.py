"""When to stop asking: after each batch, whether the gate is decided and what to ask next.

The core and the evaluate worker both use this; the rule crosses to the worker as plain data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from eval_gates.statistics.comparison import Comparison
from eval_gates.statistics.sequential import sequential_test

State = Literal["pass", "fail", "open"]


@dataclass(frozen=True)
class Stopping:
    """How far one round of questions goes.

    Args:
        upto: questions at most.
        batch: questions between two looks.
        rule: what would decide the gate, as `rule_of` writes it; None to ask all.
        baseline: the baseline's scores to the same questions; needed where there is a rule.
    """

    upto: int
    batch: int
    rule: Mapping[str, Any] | None = None
    baseline: Sequence[float] = ()

    def state(self, scores: Sequence[float]) -> State:
        """Whether these scores decide the gate; always 'open' without a rule."""
        if self.rule is None or not scores:
            return "open"
        result = sequential_test(
            self.baseline[: len(scores)],
            scores,
            comparison_of(self.rule["margin"]),
            self.rule["alpha"],
            self.rule["population"],
            bounds=False,
        )
        return result.verdict

    def next_batch(self, scores: Sequence[float]) -> range:
        """The questions to ask next, by their place; empty when this round is over."""
        done = len(scores)
        if done >= self.upto or self.state(scores) != "open":
            return range(0)
        return range(done, min(done + self.batch, self.upto))


def rule_of(margin: Mapping[str, Any], alpha: float, population: int | None) -> dict[str, Any]:
    """A rule as plain data.

    Args:
        margin: `points` or `recovery`, the other one None.
        alpha: error rate of the gate.
        population: how many questions the finite benchmark has that the claim is about; None for
            a claim about the population that they were drawn from.
    """
    return {"margin": dict(margin), "alpha": alpha, "population": population}


def comparison_of(margin: Mapping[str, Any]) -> Comparison:
    """The comparison that a policy's margin asks for."""
    if margin.get("recovery") is not None:
        return Comparison.recovery(margin["recovery"])
    return Comparison.points(margin["points"])
