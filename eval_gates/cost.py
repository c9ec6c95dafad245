"""The gate `cost`: tokens per solved task, variant over baseline, from recorded answers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from eval_gates.clusters import group_by_cluster
from eval_gates.gate_report import Tier, Verdict
from eval_gates.speed.report import SpeedGateReport
from eval_gates.statistics.cost import CostTest, Work, min_problems, run_cost_test
from pipeline.core.record import Record
from recipes.cost import CostGate
from recipes.generation import Generation
from recipes.policy import EvalTask

METHOD = "Gaffke's bound at each price of a solved task (Berger and Boos)"

Rows = Sequence[Mapping[str, Any]]


class CostRule(Record):
    """Settings that decide a gate on tokens per solved task: planning writes them."""

    tier: Tier
    max_ratio: float
    alpha: float = Field(description="level, that of the suite's gate")
    cap: int = Field(description="largest number of tokens of an answer")


class CostSide(Record):
    """Work of one side."""

    tokens: float = Field(description="mean number of an answer, thoughts included")
    solved: float = Field(description="mean score, 0 to 1; a truncated answer counts as unsolved")
    truncated: float = Field(description="share of the answers that reached the cap")
    tokens_per_solved_task: float | None = Field(description="None if nothing was solved")


class SolvedTaskTime(Record):
    """Time of a solved task, variant over baseline: this ratio over a measured throughput ratio."""

    gate: str = Field(description="that measured the throughput ratio")
    throughput_ratio: float
    seconds_ratio: float = Field(
        description="seconds per solved task; GPU-seconds likewise, as both sides have the same "
        "number of GPUs"
    )
    upper: float | None = Field(description="upper bound of it, from both bounds (Bonferroni)")
    alpha: float = Field(description="error rate of that bound: the sum of both")


class CostReport(Record):
    """Tokens per solved task of one variant against the baseline's, on one suite."""

    suite: str = Field(description="name of the suite in the policy")
    tier: Tier
    n: int = Field(description="problems, or clusters of them, answered by both")
    cap: int = Field(description="largest number of tokens of an answer")
    baseline: CostSide
    candidate: CostSide
    ratio: float | None = Field(description="None if a side solved nothing")
    lower: float = Field(description="one-sided bound of the ratio; 0 if there is none")
    upper: float | None = Field(description="one-sided bound of the ratio; None if there is none")
    max_ratio: float = Field(description="what the upper bound must lie below to pass")
    alpha: float = Field(description="error rate of each bound, and of the verdict")
    p_value: float = Field(description="of 'the ratio is max_ratio or more'")
    method: str = METHOD
    time: SolvedTaskTime | None = Field(None, description="None without a throughput ratio")
    verdict: Verdict
    reason: str = Field(description="the verdict in words")

    @property
    def name(self) -> str:
        return f"cost {self.suite}"


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


def judge_cost(
    suite: str,
    rule: CostRule,
    baseline: Rows,
    candidate: Rows,
    speed: Sequence[SpeedGateReport] = (),
) -> CostReport:
    """Compare the work of both sides; ValueError if their questions differ or a row lacks tokens.

    Args:
        baseline: rows with id, score and tokens, in the order of asking.
        candidate: rows to the same questions.
        speed: reports on the same variant; the first ratio gives the time.
    """
    if [row["id"] for row in baseline] != [row["id"] for row in candidate]:
        raise ValueError(f"{suite}: both sides must have answered the same questions completely")
    before, after = (work_of(suite, rows, rule.cap) for rows in (baseline, candidate))
    found = run_cost_test(before, after, rule.max_ratio, rule.alpha)
    verdict: Verdict = found.verdict if found.verdict != "open" else "undecided"
    time = _time_of(found, rule, speed)
    return CostReport(
        suite=suite,
        tier=rule.tier,
        n=before.tokens.size,
        cap=rule.cap,
        baseline=_describe_side(before, baseline),
        candidate=_describe_side(after, candidate),
        ratio=found.ratio,
        lower=found.lower,
        upper=found.upper if found.upper < math.inf else None,
        max_ratio=rule.max_ratio,
        alpha=rule.alpha,
        p_value=found.p_value,
        time=time,
        verdict=verdict,
        reason="; ".join(filter(None, (_describe(found, rule, before), describe_time(time)))),
    )


def work_of(suite: str, rows: Rows, cap: int) -> Work:
    """Return the mean tokens and solved share of each problem, or cluster of problems."""
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
    return Work(np.array(tokens), np.array(solved), cap)


def _tokens(suite: str, row: Mapping[str, Any]) -> list[int]:
    tokens = row.get("tokens")
    if not isinstance(tokens, list) or not tokens:
        raise ValueError(f"{suite}: question {row['id']} has no number of tokens")
    return tokens


def _describe_side(work: Work, rows: Rows) -> CostSide:
    return CostSide(
        tokens=float(work.tokens.mean()),
        solved=float(work.solved.mean()),
        truncated=sum(row["truncated"] for row in rows) / sum(len(row["tokens"]) for row in rows),
        tokens_per_solved_task=work.cost if work.cost < math.inf else None,
    )


def _describe(found: CostTest, rule: CostRule, before: Work) -> str:
    confidence = f"{100 * (1 - rule.alpha):.4g} % confidence, {before.tokens.size} problems"
    asked = f"at most x {rule.max_ratio:g} is allowed"
    if found.verdict == "pass":
        shown = f"less than x {min(found.upper, rule.max_ratio):.3f}"
        return f"{shown} the tokens per solved task ({confidence}); {asked}"
    if found.verdict == "fail":
        shown = f"more than x {max(found.lower, rule.max_ratio):.3f}"
        return f"{shown} the tokens per solved task ({confidence}); {asked}"
    if before.cost == math.inf:
        return (
            "the gate is insensitive: the baseline solves nothing, so it has no tokens per solved "
            "task; use other questions or another suite"
        )
    least = min_problems(before, rule.cap, rule.max_ratio, rule.alpha)
    bound = f"x {found.upper:.3f}" if found.upper < math.inf else "any number of"
    start = f"may need {bound} the tokens per solved task ({confidence}); {asked}"
    if least is not None and least > before.tokens.size:
        return (
            f"{start}; with answers of up to {rule.cap} tokens at least {least} problems are "
            "needed even if no answer changes: take more, a lower max_tokens or a larger max_ratio"
        )
    return f"{start}; needs more problems or a larger max_ratio"


def _time_of(
    found: CostTest, rule: CostRule, speed: Sequence[SpeedGateReport]
) -> SolvedTaskTime | None:
    measured = next((each for each in speed if each.is_ratio), None)
    if found.ratio is None or measured is None or not measured.estimate:
        return None
    is_bounded = found.upper < math.inf and measured.lower
    return SolvedTaskTime(
        gate=measured.gate,
        throughput_ratio=measured.estimate,
        seconds_ratio=found.ratio / measured.estimate,
        upper=found.upper / measured.lower if is_bounded and measured.lower else None,
        alpha=rule.alpha + measured.alpha,
    )


def describe_time(time: SolvedTaskTime | None) -> str:
    """Describe the time of a solved task; '' without one."""
    if time is None:
        return ""
    bound = (
        f", at most x {time.upper:.3f} ({100 * (1 - time.alpha):.4g} % confidence, by Bonferroni)"
        if time.upper is not None
        else ", a point estimate without a bound"
    )
    return (
        f"with the throughput ratio of {time.gate}, x {time.throughput_ratio:.3f}, seconds and "
        f"GPU-seconds per solved task are x {time.seconds_ratio:.3f}{bound}"
    )
