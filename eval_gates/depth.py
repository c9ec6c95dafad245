"""Scores by depth: by the number of tokens in the context that an answer follows.

A quantized KV cache loses more the longer the context is, which a mean over short ones hides. A
gate beyond a depth is the same paired comparison, of the questions asked beyond it. It has one
look, at all of them, so its number of values does not depend on their scores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from pydantic import Field

from eval_gates.clusters import means
from eval_gates.gate_result import SCORE, GateResult, Verdict, format_percent
from eval_gates.rows import Answer
from eval_gates.statistics.assay_sensitivity import check_sensitivities, insensitive_checks
from eval_gates.statistics.bound import mean_bounds, p_value
from eval_gates.statistics.comparison import LOST_IN_LARGE_CLUSTERS, Comparison
from eval_gates.stopping import GateRule
from prepare.record import Record
from recipes.policy import Suite

Answers = Sequence[Answer]
DepthOf = Callable[[Answer], int | None]

LIMITS = (1_024, 4_096, 16_384, 65_536)  # tokens, the largest of each row
EVERY_VALUE = 10_000_000  # of a suite with a gate beyond a depth: no look ends the asking


class DepthSuite(Suite):
    """Settings of a suite whose answers have a depth."""

    at_depth: int | None = Field(
        None,
        ge=1,
        le=10_000_000,
        description="a further gate, with the same margin, of the questions whose answers follow "
        "more than this number of tokens; every question is then asked",
    )


class DepthReport(Record):
    """Scores of the questions whose answers follow so many tokens."""

    above: int = Field(description="tokens: more than these")
    upto: int | None = Field(description="tokens: at most these; None without a limit")
    n: int = Field(description="questions")
    baseline: float = Field(description="mean score, 0 to 1")
    candidate: float = Field(description="mean score, 0 to 1")
    nats: float | None = Field(None, description="lost a token, where recorded")

    @property
    def words(self) -> str:
        """The row's name."""
        return f"to {self.upto:,}" if self.upto is not None else f"over {self.above:,}"


class DepthResult(GateResult):
    """Comparison of one variant with the baseline on a suite's deep questions."""

    kind: Literal["depth"] = "depth"
    suite: str = Field(description="its name in the policy")
    depth: int = Field(description="tokens that the answers follow at least")


def report_depths(baseline: Answers, candidate: Answers, depth_of: DepthOf) -> list[DepthReport]:
    """Return the scores by depth; none where an answer has no depth."""
    pairs: dict[int, list[tuple[Answer, Answer]]] = {}
    for before, after in zip(baseline, candidate, strict=True):
        depth = depth_of(after)
        if depth is None:
            return []
        row = sum(depth > limit for limit in LIMITS)
        pairs.setdefault(row, []).append((before, after))
    return [_report(row, pairs[row]) for row in sorted(pairs)]


def _report(row: int, pairs: Sequence[tuple[Answer, Answer]]) -> DepthReport:
    count = len(pairs)
    lost = [
        after.nats - before.nats
        for before, after in pairs
        if before.nats is not None and after.nats is not None
    ]
    return DepthReport(
        above=LIMITS[row - 1] if row else 0,
        upto=LIMITS[row] if row < len(LIMITS) else None,
        n=count,
        baseline=sum(before.score for before, _ in pairs) / count,
        candidate=sum(after.score for _, after in pairs) / count,
        nats=sum(lost) / count if len(lost) == count else None,
    )


def judge_depth(
    name: str,
    suite: DepthSuite,
    rule: GateRule,
    *,
    baseline: Answers,
    candidate: Answers,
    guessing: float,
    depth_of: DepthOf,
) -> DepthResult:
    """Compare the answers beyond the suite's depth; a cluster counts with its deep ones.

    ValueError: questions were not asked, or have no depth.
    """
    assert suite.at_depth is not None
    if len(candidate) != len(baseline):
        missing = len(baseline) - len(candidate)
        raise ValueError(f"{name}: {missing} answers are missing, which its gate by depth needs")
    depths = [depth_of(answer) for answer in candidate]
    if any(depth is None for depth in depths):
        raise ValueError(f"{name}: an answer has no depth")
    deep = [depth is not None and depth > suite.at_depth for depth in depths]
    before = [answer for answer, is_deep in zip(baseline, deep, strict=True) if is_deep]
    after = [answer for answer, is_deep in zip(candidate, deep, strict=True) if is_deep]
    told: dict[str, Any] = {
        "name": f"{name} beyond {suite.at_depth:,} tokens",
        "suite": name,
        "depth": suite.at_depth,
        "tier": rule.tier,
        "margin": rule.margin.words,
        "alpha": rule.alpha,
        "threshold": rule.comparison.threshold,
    }
    if not after:
        return DepthResult(
            **told,
            verdict="undecided",
            reason=f"no answer follows more than {suite.at_depth:,} tokens: the gate needs longer "
            "questions, or a smaller at_depth",
        )
    scores = [means(rows, "score") for rows in (before, after)]
    unit = "clusters" if suite.cluster_by else "questions"
    return DepthResult(
        **told, **_compare(scores[0], scores[1], rule, before, after, guessing, unit)
    )


def _compare(
    before: Sequence[float],
    after: Sequence[float],
    rule: GateRule,
    baseline: Answers,
    candidate: Answers,
    guessing: float,
    unit: str,
) -> dict[str, Any]:
    """Return figures and verdict of one look at all values."""
    comparison = rule.comparison
    count = len(after)
    values = comparison.values(before, after)
    limits = {"lowest": comparison.lowest, "highest": comparison.highest}
    bounds = mean_bounds(values, rule.alpha, **limits)
    checks = check_sensitivities(baseline, guessing, comparison)
    is_sensitive = not insensitive_checks(checks, rule.alpha)
    mean_before = sum(before) / count
    mean_after = sum(after) / count
    verdict, words = _decide(bounds.lower, bounds.upper, comparison, is_sensitive)
    old, new = ([row.score for row in rows] for rows in (baseline, candidate))
    if verdict == "pass" and comparison.is_lost_by_question(old, new):
        verdict = "undecided"
        words = f"inside {comparison.words}, but {LOST_IN_LARGE_CLUSTERS}"
    change = mean_bounds([a - b for a, b in zip(after, before, strict=True)], rule.alpha)
    return {
        "n": count,
        "counted": f"{count:,} clusters" if unit == "clusters" else f"{count:,}",
        "unit": SCORE,
        "baseline": mean_before,
        "candidate": mean_after,
        "estimate": mean_after - mean_before,
        "lower": change.lower,
        "upper": change.upper,
        "bound": bounds.lower,
        "allowed": -comparison.allowed_drop(mean_before),
        "kept": (mean_after / mean_before if mean_before else 0.0)
        if comparison.kind == "recovery"
        else None,
        "p_value": max(
            p_value(values, comparison.threshold, lowest=comparison.lowest),
            *(check.p_insensitive for check in checks),
        ),
        "verdict": verdict,
        "reason": f"{format_percent(mean_after, 1)}, the baseline {format_percent(mean_before, 1)}"
        f" on {count:,} {unit}; {words}",
    }


def _decide(
    lower: float, upper: float, comparison: Comparison, is_sensitive: bool
) -> tuple[Verdict, str]:
    if upper < comparison.threshold:
        return "fail", f"not inside {comparison.words}"
    if not is_sensitive:
        return "undecided", (
            f"the gate is insensitive: the baseline scores too little for {comparison.words}"
        )
    if lower > comparison.threshold:
        return "pass", f"inside {comparison.words}"
    return "undecided", (
        f"not shown to be inside {comparison.words}; needs more questions beyond that depth"
    )
