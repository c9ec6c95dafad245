"""Cost and verbosity: tokens per solved task and tokens of an answer, variant over baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from eval_gates.clusters import group_by_cluster
from eval_gates.gate_result import RATIO, GateResult, Verdict
from eval_gates.statistics.cost import MIN_PROBLEMS, RatioInterval, cost_ratio, tokens_ratio
from pipeline.core.record import Record
from recipes.cost import CostGate
from recipes.generation import Generation
from recipes.policy import EvalTask

if TYPE_CHECKING:
    from eval_gates.statistics.comparison import FloatArray

METHOD = "delta method on the logarithm, problems as units"

Rows = Sequence[Mapping[str, Any]]


class CostRule(Record):
    """Settings that decide a gate on tokens per solved task: planning writes them."""

    tier: Literal["supporting", "advisory"]
    max_ratio: float
    alpha: float = Field(description="level, that of the suite's gate")
    cap: int = Field(description="largest number of tokens of an answer")


class CostSide(Record):
    """Work of one side."""

    tokens: float = Field(description="mean number of an answer, thoughts included")
    solved: float = Field(description="mean score, 0 to 1; a truncated answer counts as unsolved")
    truncated: float = Field(description="share of the answers that reached the cap")
    tokens_per_solved_task: float | None = Field(description="None if nothing was solved")


class Ratio(Record):
    """A ratio, variant over baseline, with one-sided bounds."""

    ratio: float | None = Field(description="None if a side solved nothing")
    lower: float | None = Field(description="None with fewer than 500 problems")
    upper: float | None = Field(description="likewise")


class CostResult(GateResult):
    """Tokens per solved task of one variant against the baseline's, on one suite."""

    kind: Literal["cost"] = "cost"
    cap: int = Field(description="largest number of tokens of an answer")
    sides: dict[Literal["baseline", "candidate"], CostSide]
    tokens: Ratio = Field(description="of mean tokens of an answer")
    method: str = METHOD


def cost_rule_of(
    gate: CostGate, suite: EvalTask, family: str, alpha: float, max_length: int
) -> CostRule:
    """Return the rule of a policy's gate on one suite; LookupError without a ratio for the family.

    Args:
        suite: as asked.
        alpha: level of the suite's gate.
        max_length: tokens that a prompt and its answer may have together.
    """
    asked = suite.max_tokens if isinstance(suite, Generation) else None
    ratio = gate.ratio_of(family)
    if ratio is None:
        raise LookupError(f"the policy's cost has no max_ratio for {family} recipes")
    cap = asked if isinstance(asked, int) else max_length
    return CostRule(tier=gate.tier, max_ratio=ratio, alpha=alpha, cap=min(cap, max_length))


def judge_cost(suite: str, rule: CostRule, baseline: Rows, candidate: Rows) -> CostResult:
    """Compare the work of both sides on the questions that both answered.

    Args:
        baseline: rows with id, score and tokens, in the order of asking.
        candidate: rows to the same questions, or to the first of them.

    Raises:
        ValueError: their questions differ, or a row lacks tokens.
    """
    baseline = baseline[: len(candidate)]
    if [row["id"] for row in baseline] != [row["id"] for row in candidate]:
        raise ValueError(f"{suite}: both sides must have answered the same questions")
    before, after = (work_of(suite, rows) for rows in (baseline, candidate))
    cost = cost_ratio(before, after, rule.alpha)
    verdict: Verdict = "undecided"
    if cost.upper is not None and cost.upper < rule.max_ratio:
        verdict = "pass"
    elif cost.lower is not None and cost.lower > rule.max_ratio:
        verdict = "fail"
    n, reason = before[0].size, _describe(verdict, cost, rule, before[0].size)
    sides = [_describe_side(before, baseline), _describe_side(after, candidate)]
    words = reason
    if cost.ratio is not None and cost.upper is not None:
        words = (
            f"{100 * cost.ratio:.0f} % of the baseline's tokens per solved task; "
            f"at most {100 * rule.max_ratio:g} % is allowed"
        )
    return CostResult(
        name=f"cost {suite}",
        metric="tokens per solved task",
        tier=rule.tier,
        n=n,
        counted=f"{n:,}",
        unit="tokens/task",
        baseline=sides[0].tokens_per_solved_task,
        candidate=sides[1].tokens_per_solved_task,
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
        words=words,
        reason=reason,
        cap=rule.cap,
        sides={"baseline": sides[0], "candidate": sides[1]},
        tokens=_ratio(tokens_ratio(before[0], after[0], rule.alpha)),
    )


def work_of(suite: str, rows: Rows) -> tuple[FloatArray, FloatArray]:
    """Return mean tokens and solved share of each problem, or cluster; shape [n] each."""
    import numpy as np

    tokens, solved = [], []
    for cluster in group_by_cluster(rows):
        answers = [_tokens(suite, row) for row in cluster]
        tokens.append(sum(map(sum, answers)) / sum(map(len, answers)))
        # Several answers are of a suite whose truncated answers score 0 (Policy), so this changes
        # the score of a single one alone.
        shares = [
            min(float(row["score"]), 1 - int(row["truncated"]) / len(each))
            for row, each in zip(cluster, answers, strict=True)
        ]
        solved.append(sum(shares) / len(shares))
    return np.array(tokens, dtype=float), np.array(solved, dtype=float)


def _tokens(suite: str, row: Mapping[str, Any]) -> list[int]:
    tokens = row.get("tokens")
    if not isinstance(tokens, list) or not tokens:
        raise ValueError(f"{suite}: question {row['id']} has no number of tokens")
    return tokens


def _ratio(found: RatioInterval) -> Ratio:
    return Ratio(ratio=found.ratio, lower=found.lower, upper=found.upper)


def _describe_side(work: tuple[FloatArray, FloatArray], rows: Rows) -> CostSide:
    tokens, solved = (float(values.mean()) for values in work)
    return CostSide(
        tokens=tokens,
        solved=solved,
        truncated=sum(row["truncated"] for row in rows) / sum(len(row["tokens"]) for row in rows),
        tokens_per_solved_task=tokens / solved if solved > 0 else None,
    )


def _describe(verdict: Verdict, found: RatioInterval, rule: CostRule, n: int) -> str:
    asked = (
        f"at most x {rule.max_ratio:g} is allowed; it holds for answers of up to {rule.cap:,} "
        "tokens at this reasoning effort, and runs at another cap or effort are not comparable"
    )
    if found.ratio is None:
        return f"a side solves nothing, so it has no tokens per solved task; {asked}"
    if found.lower is None or found.upper is None:
        return (
            f"x {found.ratio:.3f} the tokens per solved task; {n} problems are too few for an "
            f"interval, which takes {MIN_PROBLEMS}; {asked}"
        )
    confidence = f"{100 * (1 - rule.alpha):.4g} % confidence, {n} problems"
    if verdict == "pass":
        shown = f"less than x {found.upper:.3f}"
    elif verdict == "fail":
        shown = f"more than x {found.lower:.3f}"
    else:
        shown = f"between x {found.lower:.3f} and x {found.upper:.3f}"
    return f"{shown} the tokens per solved task ({confidence}); {asked}"
