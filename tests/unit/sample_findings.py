"""Findings and scores for a decision, plausible ones and those of real tests."""

from __future__ import annotations

import random
from typing import Any

from eval_gates.quality_gate import Scores
from eval_gates.statistics.comparison import Comparison
from eval_gates.statistics.looks import Finding

ALPHA = 0.05
POINTS = Comparison.points(0.02)
RECOVERY = Comparison.recovery(0.95)


def finding(state: str, **changes: Any) -> Finding:
    """A finding at the second of three looks at 1,000 questions; any field can be another."""
    bounds = {"pass": (-0.012, 0.01), "fail": (-0.08, -0.03), "open": (-0.03, 0.01)}[state]
    fields: dict[str, Any] = {
        "state": state,
        "comparison": POINTS,
        "alpha": ALPHA,
        "n": 500,
        "planned": 1000,
        "number": 2,
        "looks": 3,
        "p_value": 0.01,
        "lower": bounds[0],
        "upper": bounds[1],
    }
    return Finding(**fields | changes)


def scores(baseline: float = 0.6, candidate: float = 0.6, **changes: Any) -> Scores:
    fields = {"flips": 0.02, "full_baseline": baseline, **changes}
    return Scores(baseline=baseline, candidate=candidate, **fields)


def binary(n: int, lost: int, gained: int, right: int | None = None) -> tuple[Any, Any]:
    """Shuffled answers of two models, of which the first knows `right`."""
    right = n - gained if right is None else right
    before = [1.0] * right + [0.0] * (n - right)
    after = [0.0] * lost + [1.0] * (right - lost + gained) + [0.0] * (n - right - gained)
    pairs = list(zip(before, after, strict=True))
    random.Random(11).shuffle(pairs)
    return [b for b, _ in pairs], [a for _, a in pairs]
