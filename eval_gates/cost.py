"""Tokens per solved task and tokens of an answer, variant over baseline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from eval_gates.clusters import group_by_cluster
from eval_gates.gate_result import RATIO, GateResult, Verdict
from eval_gates.rows import Answer
from eval_gates.statistics.bound import check_level
from prepare.record import Record
from recipes.generation import Generation
from recipes.policy import CostGate, EvalTask

if TYPE_CHECKING:
    from eval_gates.statistics.comparison import FloatArray

Answers = Sequence[Answer]
MIN_PROBLEMS = 500
"""With fewer problems there is no interval."""


@dataclass(frozen=True)
class RatioInterval:
    """A ratio, variant over baseline, with one-sided bounds; None where there is none."""

    ratio: float | None
    lower: float | None
    upper: float | None


def tokens_ratio(before: FloatArray, after: FloatArray, level: float) -> RatioInterval:
    """Compare mean tokens of each problem's answers; shape [n] each."""
    return _interval([(after, 1), (before, -1)], level)


def cost_ratio(
    before: tuple[FloatArray, FloatArray], after: tuple[FloatArray, FloatArray], level: float
) -> RatioInterval:
    """Compare tokens per solved task: E[T] / E[S], for tokens T and solved shares S of problems.

    The log of a ratio of means is asymptotically normal (delta method; Cox 1990, Statistics &
    Probability Letters 9:83-90). From MIN_PROBLEMS on, a 5 % bound errs in 4.5 to 5.5 %, or 8 % at
    extreme lengths.
    """
    return _interval([(after[0], 1), (after[1], -1), (before[0], -1), (before[1], 1)], level)


def _interval(factors: list[tuple[FloatArray, int]], level: float) -> RatioInterval:
    """Return the product of means, each to a power of 1 or -1."""
    import numpy as np

    check_level(level)
    means = [float(values.mean()) for values, _ in factors]
    if min(means) <= 0:
        return RatioInterval(None, None, None)
    log = sum(power * math.log(mean) for mean, (_, power) in zip(means, factors, strict=True))
    n = factors[0][0].size
    if n < MIN_PROBLEMS:
        return RatioInterval(math.exp(log), None, None)
    parts = [power * v / mean for mean, (v, power) in zip(means, factors, strict=True)]
    error = float(np.sum(parts, axis=0).std(ddof=1)) / math.sqrt(n)
    reach = NormalDist().inv_cdf(1 - level) * error
    return RatioInterval(math.exp(log), math.exp(log - reach), math.exp(log + reach))


class CostRule(Record):
    """Settings that decide a gate on tokens per solved task."""

    tier: Literal["supporting", "advisory"]
    max_ratio: float
    alpha: float = Field(description="level, that of the suite's gate")
    cap: int = Field(description="largest number of tokens of an answer")


class CostResult(GateResult):
    """Tokens per solved task of one variant against the baseline's, on one suite."""

    kind: Literal["cost"] = "cost"
    cap: int = Field(description="largest number of tokens of an answer")
    tokens: RatioInterval = Field(description="of mean tokens of an answer")


def cost_rule_of(
    gate: CostGate, suite: EvalTask, family: str, alpha: float, max_length: int
) -> CostRule:
    """Return a gate's rule on one suite; LookupError without a ratio."""
    asked = suite.max_tokens if isinstance(suite, Generation) else None
    ratio = gate.ratio_of(family)
    if ratio is None:
        raise LookupError(f"the policy's cost has no max_ratio for {family} recipes")
    cap = asked if isinstance(asked, int) else max_length
    return CostRule(tier=gate.tier, max_ratio=ratio, alpha=alpha, cap=min(cap, max_length))


def judge_cost(suite: str, rule: CostRule, baseline: Answers, candidate: Answers) -> CostResult:
    """Compare the work on the questions that both sides answered.

    ValueError if questions differ, or an answer lacks tokens.
    """
    baseline = baseline[: len(candidate)]
    if [row.id for row in baseline] != [row.id for row in candidate]:
        raise ValueError(f"{suite}: both sides must have answered the same questions")
    before, after = (work_of(suite, rows) for rows in (baseline, candidate))
    cost = cost_ratio(before, after, rule.alpha)
    n = before[0].size
    shown = f"x {cost.ratio or 0:.3f}"
    verdict: Verdict = "undecided"
    why = f"{100 * (1 - rule.alpha):.4g} % confidence, {n} problems"
    if cost.ratio is None:
        shown = "nothing is known of"
        why = "a side solves nothing"
    elif cost.lower is None or cost.upper is None:
        why = f"{n} problems are too few for an interval, which takes {MIN_PROBLEMS}"
    elif cost.upper < rule.max_ratio:
        verdict = "pass"
        shown = f"less than x {cost.upper:.3f}"
    elif cost.lower > rule.max_ratio:
        verdict = "fail"
        shown = f"more than x {cost.lower:.3f}"
    else:
        shown = f"between x {cost.lower:.3f} and x {cost.upper:.3f}"
    costs = [work[0].mean() / work[1].mean() if work[1].any() else None for work in (before, after)]
    return CostResult(
        name=f"cost {suite}",
        metric="tokens per solved task",
        tier=rule.tier,
        n=n,
        counted=f"{n:,}",
        unit="tokens/task",
        baseline=costs[0],
        candidate=costs[1],
        scale=RATIO,
        estimate=cost.ratio,
        lower=cost.lower,
        upper=cost.upper,
        bound=cost.upper,
        threshold=rule.max_ratio,
        allowed=rule.max_ratio,
        direction="below",
        margin=f"at most {rule.max_ratio:g}",
        alpha=rule.alpha,
        verdict=verdict,
        reason=f"{shown} the tokens per solved task ({why}); at most x {rule.max_ratio:g} is "
        f"allowed; it holds for answers of up to {rule.cap:,} tokens at this reasoning effort, and "
        "runs at another cap or effort are not comparable",
        cap=rule.cap,
        tokens=tokens_ratio(before[0], after[0], rule.alpha),
    )


def work_of(suite: str, rows: Answers) -> tuple[FloatArray, FloatArray]:
    """Return clusters' mean tokens and solved shares; [n] each."""
    import numpy as np

    tokens = []
    solved = []
    for cluster in group_by_cluster(rows):
        answers = [row.tokens for row in cluster]
        for row in cluster:
            if not row.tokens:
                raise ValueError(f"{suite}: question {row.id} has no number of tokens")
        tokens.append(sum(map(sum, answers)) / sum(map(len, answers)))
        # With one answer only: Policy requires that truncated ones of several score 0 already.
        shares = [min(row.score, 1 - row.truncated / len(row.tokens)) for row in cluster]
        solved.append(sum(shares) / len(shares))
    return np.array(tokens, dtype=float), np.array(solved, dtype=float)
