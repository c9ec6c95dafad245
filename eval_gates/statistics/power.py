"""Power of a sequential gate, from simulated runs of the real gate (simulation.py).

`min_questions` is exact. With fewer questions a gate could pass only on net gains, which
quantization does not cause; such a suite is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from eval_gates.statistics.betting import NUMBER_OF_BETS, log_wealth, mix, stake
from eval_gates.statistics.comparison import Comparison
from eval_gates.statistics.planned_bet import planned_bet
from eval_gates.statistics.sequential import check_alpha
from eval_gates.statistics.simulation import SimulatedRuns, outcomes, simulate_runs

TARGET_POWER = 0.8
"""Probability with which a drop must be detected; a plan with a lower chance to pass is uncertain.
"""

_BLOCKS, _SEARCH_BLOCKS, _SEARCH_STEPS = 220, 55, 7
_MAX_QUESTIONS = 10**12  # more than any benchmark has
_NEGLIGIBLE_SCORE = 1e-6  # no benchmark distinguishes such a mean score from 0


@dataclass(frozen=True)
class SequentialGatePower:
    """Expected behavior of a gate, from simulated runs."""

    expected_questions: float
    """Mean number of questions, in whole batches, if nothing is lost; at most the cap."""
    chance_of_pass: float
    """Chance to pass by the cap if nothing is lost."""
    chance_of_pass_at_half: float
    """Chance to pass if the true drop is half of the margin."""
    chance_of_fail: float
    """Chance to fail wrongly by the cap if nothing is lost."""
    chance_of_fail_at_half: float
    """Chance to fail wrongly if the true drop is half of the margin."""
    min_detectable_drop: float | None
    """Smallest true drop that fails with a chance of 80 % by the cap; None if none does."""
    min_questions: int | None
    """Questions needed to pass if no answer changes; None if no feasible number is enough."""
    decidable: bool
    """Whether the gate could pass within the cap."""
    words: str


def power_plan(
    comparison: Comparison,
    *,
    alpha: float,
    questions: int,
    flips: float,
    flip_size: float = 1.0,
    population: int | None = None,
    baseline: float | None = None,
    batch: int = 64,
    replays: int = 300,
    seed: int = 0,
) -> SequentialGatePower:
    """Plan a sequential gate.

    Args:
        questions: the cap.
        replays: simulated runs; a chance of 95 % from 300 has a standard error of 1.3 points.
    """
    check_alpha(alpha)
    if min(questions, batch, replays) < 1:
        raise ValueError("questions, batch and replays must be at least 1")
    if population is not None and questions > population:
        raise ValueError(f"a benchmark of {population} questions does not have {questions}")
    if comparison.kind == "recovery" and baseline is None:
        raise ValueError("a recovery needs `baseline`: it is a share of the baseline's score")
    base = 1.0 if baseline is None else baseline

    def bet(comparison: Comparison) -> float:
        return planned_bet(comparison, flips, flip_size, base)

    planned = bet(comparison)

    def run(drop: float, blocks: int) -> SimulatedRuns:
        return simulate_runs(
            outcomes(comparison, flips, flip_size, drop, base),
            comparison,
            alpha=alpha,
            questions=questions,
            population=population,
            runs=replays,
            blocks=blocks,
            seed=seed,
            planned=planned,
        )

    same = run(0.0, _BLOCKS)
    least = min_questions(comparison, alpha, population, base, planned)
    decidable = least is not None and least <= questions
    chance_of_pass = float(same.passed.mean())
    most = flip_size if comparison.kind == "points" else min(flip_size, base)
    half = min(comparison.allowed_drop(base) / 2, most)
    halved = run(half, _BLOCKS)
    at_half = float(halved.passed.mean())
    visible = find_smallest_drop(
        lambda drop: float(run(drop, _SEARCH_BLOCKS).failed.mean()) >= TARGET_POWER,
        comparison.allowed_drop(base),
        most,
        _SEARCH_STEPS,
    )
    expected = _mean_questions(same, questions, batch)
    if decidable:
        words = _describe_plan(
            comparison, alpha, questions, flips, expected, (chance_of_pass, at_half), visible
        )
    else:
        words = _describe_undecidable(comparison, alpha, questions, population, base, least, bet)
    return SequentialGatePower(
        expected_questions=expected,
        chance_of_pass=chance_of_pass,
        chance_of_pass_at_half=at_half,
        chance_of_fail=float(same.failed.mean()),
        chance_of_fail_at_half=float(halved.failed.mean()),
        min_detectable_drop=visible,
        min_questions=least,
        decidable=decidable,
        words=words,
    )


def min_questions(
    comparison: Comparison,
    alpha: float,
    population: int | None,
    baseline: float = 1.0,
    planned: float | None = None,
) -> int | None:
    """Return the number of questions at which the gate passes if no answer changes.

    Exact for :func:`sequential.sequential_test` if every baseline score is `baseline`. A gate can
    pass sooner only by net gains. None if no feasible number of questions passes.
    """
    import numpy as np

    check_alpha(alpha)
    if not 0 <= baseline <= 1:
        raise ValueError(f"the baseline's mean score must be in [0, 1], not {baseline}")
    value = 0.0 if comparison.kind == "points" else (1 - comparison.size) * baseline
    if value <= comparison.threshold:
        return None
    height, mean = value - comparison.lowest, comparison.threshold - comparison.lowest
    growth = np.log1p(stake(planned) * (height / mean - 1))
    needed = -math.log(alpha)
    smallest_stake = 1 / NUMBER_OF_BETS if planned is None else 1 / (2 * NUMBER_OF_BETS)
    best = float(growth.max())  # of this bet alone; 0 if the value is close to 0
    least = None
    if best * _MAX_QUESTIONS >= needed - math.log(smallest_stake):
        enough = math.ceil((needed - math.log(smallest_stake)) / best)
        least = find_first(lambda n: bool(mix(n * growth, planned) >= needed), enough)
    if population is None:
        return least
    # Without replacement the evidence is never less, so the search ends there.
    shown = np.full(min(least or population, population), height)
    crossed = log_wealth(shown, mean, population, planned) >= needed
    return int(crossed.argmax()) + 1 if crossed.any() else population


def find_strictest_decidable(
    comparison: Comparison,
    alpha: float,
    questions: int,
    population: int | None,
    baseline: float = 1.0,
    bet: Callable[[Comparison], float] | None = None,
) -> Comparison | None:
    """Find the strictest margin that a sequential gate could pass."""

    def least(margin: Comparison) -> int | None:
        return min_questions(margin, alpha, population, baseline, bet(margin) if bet else None)

    return find_strictest(comparison, questions, least)


def find_strictest(
    comparison: Comparison, questions: int, least: Callable[[Comparison], int | None]
) -> Comparison | None:
    """Find the strictest possible margin of the same kind, rounded outward to 0.1 points."""

    def candidate(tenths: int) -> Comparison:
        if comparison.kind == "points":
            return Comparison.points(tenths / 1000)
        return Comparison.recovery((1000 - tenths) / 1000)

    def passes(tenths: int) -> bool:
        needed = least(candidate(tenths))
        return needed is not None and needed <= questions

    return candidate(find_first(passes, 999)) if passes(999) else None


def find_first(holds: Callable[[int], bool], known: int) -> int:
    """Return the smallest integer >= 1 from which on `holds` is true."""
    low, high = 0, known
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _mean_questions(same: SimulatedRuns, questions: int, batch: int) -> float:
    import numpy as np

    at = np.where(same.passed, same.passed_at, np.where(same.failed, same.failed_at, questions))
    return float(np.minimum(np.ceil(at / batch) * batch, questions).mean())


def find_smallest_drop(
    is_detected: Callable[[float], bool], allowed: float, most: float, steps: int
) -> float | None:
    """Find the minimum detectable drop, by bisection on a log scale."""
    if most <= allowed or allowed <= 0 or not is_detected(most):
        return None
    low, high = allowed, most
    for _ in range(steps):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if is_detected(middle) else (middle, high)
    return high


def _describe_plan(
    comparison: Comparison,
    alpha: float,
    questions: int,
    flips: float,
    expected: float,
    chances: tuple[float, float],
    visible: float | None,
) -> str:
    start = (
        f"{comparison.words} ({100 * (1 - alpha):g} % confidence): if {100 * flips:g} % of the"
        f" answers flip and nothing is lost, about {expected:.0f} of at most {questions} questions,"
        f" and {describe_pass_chance(*chances)}"
    )
    return f"{start}; {describe_detectable_drop(visible, chances[0])}"


def describe_detectable_drop(visible: float | None, passed: float) -> str:
    """Describe the minimum detectable drop."""
    detected = (
        "no true drop is likely to be detected"
        if visible is None
        else f"a true drop of {100 * visible:.1f} points is detected in {100 * TARGET_POWER:.0f} %"
    )
    hint = "" if passed >= TARGET_POWER else "; needs more questions or a wider margin"
    return detected + hint


def describe_pass_chance(nothing_lost: float, half_lost: float) -> str:
    """Describe the chances to pass with nothing lost and with half of the margin lost."""
    return (
        f"a pass in {100 * nothing_lost:.0f} % of runs ({100 * half_lost:.0f} % if half the margin"
        " is lost)"
    )


def _describe_undecidable(
    comparison: Comparison,
    alpha: float,
    questions: int,
    population: int | None,
    baseline: float,
    least: int | None,
    bet: Callable[[Comparison], float],
) -> str:
    start = f"this suite cannot decide {comparison.words} ({100 * (1 - alpha):g} % confidence)"
    if least is None and comparison.kind == "recovery" and baseline < _NEGLIGIBLE_SCORE:
        return f"{start}: the baseline scores nothing; use another suite"
    strictest = find_strictest_decidable(comparison, alpha, questions, population, baseline, bet)
    wider = "a wider margin"
    if strictest is not None:
        wider = f"{strictest.words} or {'more' if comparison.kind == 'points' else 'less'}"
    if least is None:
        return (
            f"{start}: even if no answer changes, no feasible number of questions decides it;"
            f" needs {wider}"
        )
    return (
        f"{start}: even if no answer changes it takes {least} questions, and the cap"
        f" is {questions}; needs more questions or {wider}"
    )
