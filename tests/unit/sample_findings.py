"""Findings and scores for a decision, plausible ones and those of real tests."""

from __future__ import annotations

import random
from typing import Any

from eval_gates.statistics.comparison import Comparison
from eval_gates.statistics.decision import Decision, Scores, decide
from eval_gates.statistics.result import (
    SEQUENTIAL,
    GateTestResult,
    run_fixed_test,
    run_sequential_test,
)

ALPHA = 0.05
POINTS = Comparison.points(0.02)
RECOVERY = Comparison.recovery(0.95)


def finding(verdict: str, **changes: Any) -> GateTestResult:
    """A betting test's finding on 500 questions; any field can be another."""
    bounds = {"pass": (-0.012, 0.01), "fail": (-0.08, -0.03), "open": (-0.03, 0.01)}[verdict]
    fields: dict[str, Any] = {
        "verdict": verdict,
        "comparison": POINTS,
        "alpha": ALPHA,
        "n": 500,
        "decided_at": None if verdict == "open" else 420,
        "p_value": 0.01,
        "lower": bounds[0],
        "upper": bounds[1],
        "method": SEQUENTIAL,
    }
    return GateTestResult(**fields | changes)


def scores(baseline: float = 0.6, candidate: float = 0.6, **changes: Any) -> Scores:
    return Scores(
        **{"flips": 0.02, "flip_size": 1.0, **changes, "baseline": baseline, "candidate": candidate}
    )


def judged(
    before: list[float], after: list[float], comparison: Comparison, test: str = "sequential"
) -> Decision:
    """By a real test of these answers, about the population."""
    if test == "fixed":
        found = run_fixed_test(before, after, comparison, ALPHA)
    else:
        found = run_sequential_test(before, after, comparison, ALPHA, None)
    return decide(found, scores_of(before, after))


def scores_of(before: list[float], after: list[float]) -> Scores:
    n = len(before)
    sizes = [abs(a - b) for a, b in zip(after, before, strict=True) if a != b]
    return Scores(
        sum(before) / n, sum(after) / n, len(sizes) / n, sum(sizes) / len(sizes) if sizes else 0.0
    )


def binary(n: int, lost: int, gained: int, right: int | None = None) -> tuple[Any, Any]:
    """Shuffled answers of two models, of which the first knows `right`."""
    right = n - gained if right is None else right
    before = [1.0] * right + [0.0] * (n - right)
    after = [0.0] * lost + [1.0] * (right - lost + gained) + [0.0] * (n - right - gained)
    pairs = list(zip(before, after, strict=True))
    random.Random(11).shuffle(pairs)
    return [b for b, _ in pairs], [a for _, a in pairs]
