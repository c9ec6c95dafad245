"""What a sequential gate can be expected to show, before anything runs.

The figures come from imagined runs of the real gate (replays.py): how many questions it asks when
nothing was lost, how often it decides, the smallest true loss it would catch. `least_questions`
is not simulated: with fewer, a gate could pass on net gains only, which a quantized model does not
owe to its quality, so such a suite is refused at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from eval_gates.statistics.betting import NUMBER_OF_BETS, log_wealth, mix, stake
from eval_gates.statistics.comparison import Comparison
from eval_gates.statistics.planned_bet import planned_bet
from eval_gates.statistics.sequential import check_alpha
from eval_gates.statistics.simulation import SimulatedRuns, outcomes, replay

WANTED_CHANCE = 0.8
"""The chance with which a drop is to be seen, and below which a plan is called uncertain."""

_BLOCKS, _SEARCH_BLOCKS, _SEARCH_STEPS = 220, 55, 7
_MOST_QUESTIONS = 10**12  # more than anybody could ask
_NEXT_TO_NOTHING = 1e-6  # a baseline's mean score that no benchmark distinguishes from 0


@dataclass(frozen=True)
class SequentialGatePower:
    """What to expect of a gate with these settings, from imagined runs."""

    expected_questions: float
    """Mean number asked, in whole batches, if the candidate is no worse; at most the cap."""
    chance_of_pass: float
    """That the gate passes by the cap, if the candidate is no worse."""
    chance_of_pass_at_half: float
    """Likewise, if the candidate truly lost half of what the margin allows."""
    chance_of_fail: float
    """That the gate wrongly fails by the cap, if the candidate is no worse."""
    chance_of_fail_at_half: float
    """Likewise, if the candidate truly lost half of what the margin allows."""
    smallest_visible_drop: float | None
    """The smallest true drop that fails with a chance of 80 % by the cap; None if none does."""
    least_questions: int | None
    """To pass when no answer changes; None if no number that somebody could ask is enough."""
    decidable: bool
    """Whether the gate could pass at all within the cap."""
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
    """Foresee a gate's run; about 0.2 s for 14,042 questions.

    Half of its stake against 'inferior' lies on the bet that these settings call best.

    Args:
        questions: the most that will be asked.
        batch: questions asked at a time.
        replays: imagined runs; a chance of 95 % from 300 is known to 1.3 points (standard error).
        seed: of the runs; the same seed gives the same plan.
    """
    check_alpha(alpha)
    if min(questions, batch, replays) < 1:
        raise ValueError("questions, batch and replays must be at least 1")
    if population is not None and questions > population:
        raise ValueError(f"{questions} questions cannot be asked of a benchmark of {population}")
    if comparison.kind == "recovery" and baseline is None:
        raise ValueError("a recovery is a share of the baseline's score: give `baseline`")
    base = 1.0 if baseline is None else baseline

    def bet(comparison: Comparison) -> float:
        return planned_bet(comparison, flips, flip_size, base)

    planned = bet(comparison)

    def run(drop: float, blocks: int) -> SimulatedRuns:
        return replay(
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
    least = least_questions(comparison, alpha, population, base, planned)
    decidable = least is not None and least <= questions
    chance_of_pass = float(same.passed.mean())
    most = flip_size if comparison.kind == "points" else min(flip_size, base)
    half = min(comparison.allowed_drop(base) / 2, most)
    halved = run(half, _BLOCKS)
    at_half = float(halved.passed.mean())
    visible = find_smallest_drop(
        lambda drop: float(run(drop, _SEARCH_BLOCKS).failed.mean()) >= WANTED_CHANCE,
        comparison.allowed_drop(base),
        most,
        _SEARCH_STEPS,
    )
    expected = _mean_asked(same, questions, batch)
    if decidable:
        words = _plan_words(
            comparison, alpha, questions, flips, expected, (chance_of_pass, at_half), visible
        )
    else:
        words = _hopeless_words(comparison, alpha, questions, population, base, least, bet)
    return SequentialGatePower(
        expected_questions=expected,
        chance_of_pass=chance_of_pass,
        chance_of_pass_at_half=at_half,
        chance_of_fail=float(same.failed.mean()),
        chance_of_fail_at_half=float(halved.failed.mean()),
        smallest_visible_drop=visible,
        least_questions=least,
        decidable=decidable,
        words=words,
    )


def least_questions(
    comparison: Comparison,
    alpha: float,
    population: int | None,
    baseline: float = 1.0,
    planned: float | None = None,
) -> int | None:
    """The number of questions at which the gate passes when no answer changes.

    Exact for :func:`sequential.sequential_test` where every baseline score is `baseline`. Only by
    more gains than losses can a gate pass sooner. None if it never passes, or not with any number
    of questions that somebody could ask.
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
    best = float(growth.max())  # by this bet alone; 0 where the value is next to 0
    least = None
    if best * _MOST_QUESTIONS >= needed - math.log(smallest_stake):
        enough = math.ceil((needed - math.log(smallest_stake)) / best)
        least = find_first(lambda n: bool(mix(n * growth, planned) >= needed), enough)
    if population is None:
        return least
    # Without replacement the evidence is never less, so it is looked for no further than that.
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
    """As :func:`find_strictest`, of a sequential gate.

    `bet` says which one would have half of the stake at a margin; without it the stake is even.
    """

    def least(margin: Comparison) -> int | None:
        return least_questions(margin, alpha, population, baseline, bet(margin) if bet else None)

    return find_strictest(comparison, questions, least)


def find_strictest(
    comparison: Comparison, questions: int, least: Callable[[Comparison], int | None]
) -> Comparison | None:
    """The strictest margin of the same kind that could pass, rounded outward to a tenth of a point.

    None if no margin could pass with so few questions and no answer changed; how many a margin
    takes then, `least` says.
    """

    def candidate(tenths: int) -> Comparison:
        if comparison.kind == "points":
            return Comparison.points(tenths / 1000)
        return Comparison.recovery((1000 - tenths) / 1000)

    def passes(tenths: int) -> bool:
        needed = least(candidate(tenths))
        return needed is not None and needed <= questions

    return candidate(find_first(passes, 999)) if passes(999) else None


def find_first(holds: Callable[[int], bool], known: int) -> int:
    """The smallest whole number >= 1 from which on `holds`; it does at `known`."""
    low, high = 0, known
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _mean_asked(same: SimulatedRuns, questions: int, batch: int) -> float:
    import numpy as np

    at = np.where(same.passed, same.passed_at, np.where(same.failed, same.failed_at, questions))
    return float(np.minimum(np.ceil(at / batch) * batch, questions).mean())


def find_smallest_drop(
    is_seen: Callable[[float], bool], allowed: float, most: float, steps: int
) -> float | None:
    """The smallest drop that is seen, by bisection on a log scale; None if the largest is not."""
    if most <= allowed or allowed <= 0 or not is_seen(most):
        return None
    low, high = allowed, most
    for _ in range(steps):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if is_seen(middle) else (middle, high)
    return high


def _plan_words(
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
        f" and {pass_words(*chances)}"
    )
    return f"{start}; {visible_words(visible, chances[0])}"


def visible_words(visible: float | None, passed: float) -> str:
    """The smallest drop that is seen, in words, and what to do where a pass is unlikely."""
    seen = (
        "no true drop is likely to be seen"
        if visible is None
        else f"a true drop of {100 * visible:.1f} points is seen in {100 * WANTED_CHANCE:.0f} %"
    )
    hint = "" if passed >= WANTED_CHANCE else "; needs more questions or a wider margin"
    return seen + hint


def pass_words(nothing_lost: float, half_lost: float) -> str:
    """Two chances to pass, in words."""
    return (
        f"a pass in {100 * nothing_lost:.0f} % of runs ({100 * half_lost:.0f} % if half the margin"
        " is lost)"
    )


def _hopeless_words(
    comparison: Comparison,
    alpha: float,
    questions: int,
    population: int | None,
    baseline: float,
    least: int | None,
    bet: Callable[[Comparison], float],
) -> str:
    start = f"this suite cannot decide {comparison.words} ({100 * (1 - alpha):g} % confidence)"
    if least is None and comparison.kind == "recovery" and baseline < _NEXT_TO_NOTHING:
        return f"{start}: a baseline that scores nothing has nothing to keep; use another suite"
    strictest = find_strictest_decidable(comparison, alpha, questions, population, baseline, bet)
    wider = "a wider margin"
    if strictest is not None:
        wider = f"{strictest.words} or {'more' if comparison.kind == 'points' else 'less'}"
    if least is None:
        return (
            f"{start}: even when no answer changes, no number of questions that somebody could ask"
            f" decides it; needs {wider}"
        )
    return (
        f"{start}: even when no answer changes it takes {least} questions, and the cap"
        f" is {questions}; needs more questions or {wider}"
    )
