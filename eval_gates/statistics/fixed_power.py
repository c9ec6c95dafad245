"""Power of a gate with a fixed number of questions (:func:`result.run_fixed_test`).

For right-or-wrong answers and a margin in points, runs are simulated with exact bounds. Otherwise
the bounds of one typical run are computed, and runs are assumed to be normal around it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

from eval_gates.statistics.comparison import Comparison
from eval_gates.statistics.paired import counted_interval, min_identical_questions, normal_quantile
from eval_gates.statistics.power import (
    TARGET_POWER,
    SequentialGatePower,
    describe_detectable_drop,
    describe_pass_chance,
    find_first,
    find_smallest_drop,
)
from eval_gates.statistics.result import recovery_interval, value_bounds
from eval_gates.statistics.simulation import outcomes

_RUNS, _SEED, _STEPS = 300, 0, 9
_MAX_TYPICAL_QUESTIONS = 400  # more take a second
_MAX_QUESTIONS = 1 << 20  # a margin that needs more counts as undecidable


def fixed_power_plan(
    comparison: Comparison,
    *,
    alpha: float,
    questions: int,
    flips: float,
    flip_size: float = 1.0,
    baseline: float | None = None,
) -> SequentialGatePower:
    """Plan a fixed gate."""
    if questions < 1:
        raise ValueError("questions must be at least 1")
    if comparison.kind == "recovery" and baseline is None:
        raise ValueError("a recovery needs `baseline`: it is a share of the baseline's score")
    base = 1.0 if baseline is None else baseline
    gate = _Gate(comparison, alpha, questions, flips, flip_size, base)
    passed, failed = gate.chances(0.0)
    least = min_fixed_questions(comparison, alpha, baseline=base)
    most = flip_size if comparison.kind == "points" else min(flip_size, base)
    at_half, fail_at_half = gate.chances(min(comparison.allowed_drop(base) / 2, most))
    visible = find_smallest_drop(
        lambda drop: gate.chances(drop)[1] >= TARGET_POWER,
        comparison.allowed_drop(base),
        most,
        _STEPS,
    )
    start = (
        f"{comparison.words} ({100 * (1 - alpha):g} % confidence): all of {questions} questions,"
        f" then one bound; if {100 * flips:g} % of the answers flip and nothing is lost,"
        f" {describe_pass_chance(passed, at_half)}"
    )
    return SequentialGatePower(
        expected_questions=float(questions),
        chance_of_pass=passed,
        chance_of_pass_at_half=at_half,
        chance_of_fail=failed,
        chance_of_fail_at_half=fail_at_half,
        min_detectable_drop=visible,
        min_questions=least,
        decidable=least is not None and least <= questions,
        words=f"{start}; {describe_detectable_drop(visible, passed)}",
    )


def min_fixed_questions(
    comparison: Comparison, alpha: float, *, baseline: float = 1.0
) -> int | None:
    """Return the number of questions at which a fixed gate passes if no answer changes."""
    normal_quantile(alpha)
    if comparison.kind == "points":
        return min_identical_questions(comparison.size, alpha)

    def passes(number: int) -> bool:
        scores = [baseline] * number
        return recovery_interval(scores, scores, comparison.size, alpha).lower > 0

    enough = 1
    while not passes(enough):
        enough *= 2
        if enough > _MAX_QUESTIONS or baseline == 0:
            return None
    return find_first(passes, enough)


@dataclass(frozen=True)
class _Gate:
    comparison: Comparison
    alpha: float
    questions: int
    flips: float
    flip_size: float
    baseline: float

    def chances(self, drop: float) -> tuple[float, float]:
        if self.comparison.kind == "points" and self.flip_size == 1:
            return self._chances_by_draws(drop)
        return self._chances_by_normal(drop)

    def _chances_by_draws(self, drop: float) -> tuple[float, float]:
        import numpy as np

        chances = outcomes(self.comparison, self.flips, 1.0, drop, self.baseline).chances
        generator = np.random.default_rng(_SEED)
        drawn = generator.multinomial(self.questions, chances, size=_RUNS)
        passed = failed = 0
        runs, times = np.unique(drawn, axis=0, return_counts=True)
        for (lost, gained, same), often in zip(runs.tolist(), times.tolist(), strict=True):
            bounds = counted_interval((-1, 1, 0), (lost, gained, same), self.alpha)
            passed += often * (bounds.lower > self.comparison.threshold)
            failed += often * (bounds.upper < self.comparison.threshold)
        return passed / _RUNS, failed / _RUNS

    def _chances_by_normal(self, drop: float) -> tuple[float, float]:
        found = outcomes(self.comparison, self.flips, self.flip_size, drop, self.baseline)
        pairs = list(zip(found.values, found.chances, strict=True))
        mean = sum(value * chance for value, chance in pairs)
        variance = sum((value - mean) ** 2 * chance for value, chance in pairs)
        above, (below_mean, above_mean) = mean - self.comparison.threshold, self._distances
        error = math.sqrt(variance / self.questions)
        if error == 0:
            return float(above > below_mean), float(-above > above_mean)
        normal = NormalDist(sigma=error)
        return normal.cdf(above - below_mean), normal.cdf(-above - above_mean)

    @cached_property
    def _distances(self) -> tuple[float, float]:
        before, after = self._typical_answers()
        values = self.comparison.values(before, after)
        bounds = value_bounds(before, after, self.comparison, self.alpha)
        mean = float(values.mean())
        scale = math.sqrt(len(before) / self.questions)
        return scale * (mean - bounds.lower), scale * (bounds.upper - mean)

    def _typical_answers(self) -> tuple[list[float], list[float]]:
        number = min(self.questions, _MAX_TYPICAL_QUESTIONS)
        each_way = round(number * self.flips / 2)
        if self.flip_size == 1:
            right = round(number * self.baseline)
            lost, gained = min(each_way, right), min(each_way, number - right)
            before = [1.0] * right + [0.0] * (number - right)
            after = [0.0] * lost + [1.0] * (right - lost + gained)
            return before, after + [0.0] * (number - len(after))
        # Any scores that can move both ways work; real baseline scores differ from each other.
        middle = self.baseline if self.comparison.kind == "recovery" else 0.5
        before = [middle + self.flip_size * (-1) ** place / 2 for place in range(number)]
        moves = [-1.0] * each_way + [1.0] * each_way + [0.0] * number
        after = [
            min(1.0, max(0.0, score + move * self.flip_size))
            for score, move in zip(before, moves, strict=False)
        ]
        return before, after
