"""Stopping rules: whether the gate is decided, and the next questions otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from eval_gates.clusters import group_by_cluster, means, whole_end
from eval_gates.statistics.comparison import Comparison
from eval_gates.statistics.sequential import sequential_test

if TYPE_CHECKING:
    from recipes.policy import Margin

State = Literal["pass", "fail", "open"]


@dataclass(frozen=True)
class StoppingRule:
    """What decides the gate."""

    comparison: Comparison
    alpha: float
    # Questions of the finite benchmark that the claim is about; None for a claim about the
    # population that they were drawn from.
    population: int | None = None
    planned_bet: float | None = None  # that has half of the stake; None: the stake is even


@dataclass(frozen=True)
class StoppingPlan:
    """Questions of one round."""

    max_questions: int
    batch: int  # questions between two looks
    rule: StoppingRule | None = None  # None to ask all
    # The baseline's scores to the same questions; needed where there is a rule.
    baseline: Sequence[float] = ()
    # Where questions belong together, each question's cluster; batches, and the round, end where
    # one does, and a value is a cluster's mean.
    clusters: Sequence[str] | None = None

    @property
    def end(self) -> int:
        return whole_end(self.clusters, self.max_questions) if self.clusters else self.max_questions

    def state(self, scores: Sequence[float]) -> State:
        if self.rule is None or not scores:
            return "open"
        result = sequential_test(
            self._values(self.baseline[: len(scores)]),
            self._values(scores),
            self.rule.comparison,
            self.rule.alpha,
            self.rule.population,
            planned=self.rule.planned_bet,
            bounds=False,
        )
        return result.verdict

    def next_batch(self, scores: Sequence[float]) -> range:
        """Return the next questions' positions; empty at the end of the round."""
        done = len(scores)
        if done >= self.end or self.state(scores) != "open":
            return range(0)
        end = min(done + self.batch, self.end)
        return range(done, whole_end(self.clusters, end) if self.clusters else end)

    def _values(self, scores: Sequence[float]) -> Sequence[float]:
        if not self.clusters:
            return scores
        labels = self.clusters[: len(scores)]
        pairs = zip(scores, labels, strict=False)
        return means(
            group_by_cluster([{"score": s, "cluster": label} for s, label in pairs]), "score"
        )


def read_stopping(data: dict[str, Any]) -> StoppingPlan:
    """Parse plain data made by :func:`dataclasses.asdict`."""
    rule = data["rule"]
    if rule is not None:
        rule = StoppingRule(**{**rule, "comparison": Comparison(**rule["comparison"])})
    return StoppingPlan(**{**data, "rule": rule})


def comparison_of(margin: Margin) -> Comparison:
    """Return the comparison of a policy's margin."""
    if margin.recovery is not None:
        return Comparison.recovery(margin.recovery)
    assert margin.points is not None
    return Comparison.points(margin.points)
