"""From a confidence interval and a margin to a verdict with its reason in words.

The null hypothesis of every gate is 'the candidate is worse than the baseline by the margin or
more'. It is rejected, and the gate passes, when the lower bound lies above minus the margin.
Nothing is rounded before it is compared; rounding is for the words only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from eval_gates.statistics.paired import IDENTICAL, TANGO, Interval, normal_quantile, tango_interval

Verdict = Literal["pass", "fail", "undecided"]


@dataclass(frozen=True)
class Decision:
    """A gate's verdict, why, and whether the candidate is better than is believable."""

    verdict: Verdict
    reason: str
    suspicious: bool = False


def decide(
    interval: Interval,
    margin: float,
    *,
    questions: int,
    difference: float,
    baseline: float,
    alpha: float,
    floor: float = 0.0,
) -> Decision:
    """Judge whether the candidate is less than `margin` worse than the baseline.

    - `pass`: the lower bound is above -margin (the null hypothesis is rejected at level alpha);
    - `fail`: the upper bound is below -margin (a drop of more than the margin is shown);
    - `undecided`: neither, or the baseline scores no better than `floor`, so that a drop could
      not be seen at all, or the candidate does, and only a wide margin lets it pass.

    A candidate better than the baseline by more than the margin is flagged as suspicious: a
    quantized model does not learn, so such a gain more often means that something else differs.

    Args:
        interval: one-sided bounds of candidate minus baseline, each at level alpha.
        margin: largest acceptable drop, a fraction in (0, 1).
        questions: how many the interval rests on.
        difference: the observed mean difference, candidate minus baseline.
        baseline: the baseline's mean score, in [0, 1].
        alpha: error rate of each bound; for the words only.
        floor: the score of a model that knows nothing: 0.25 with four choices, 0 for a sum of
            solved problems or ROUGE.

    Raises:
        ValueError: a value is missing (NaN), out of range, or the bounds are the wrong way round.
    """
    _check(interval, margin, questions, difference, baseline)
    suspicious = difference > margin
    if baseline <= floor:
        return Decision("undecided", _blind_words(baseline, floor, questions), suspicious)
    if interval.lower > -margin and baseline + difference <= floor:
        return Decision("undecided", _floored_words(baseline, floor, margin, questions))
    if interval.lower > -margin:
        verdict: Verdict = "pass"
        reason = _pass_words(interval, margin, questions, alpha)
        if floor > 0 and baseline - floor <= margin:
            reason += (
                f"; but the baseline is only {_points(baseline - floor)} above guessing, so a model"
                " that guesses could be within this margin too"
            )
    elif interval.upper < -margin:
        verdict = "fail"
        reason = (
            f"the candidate is at least {_points(-interval.upper)} worse"
            f" ({_confidence(alpha)}, {_count(questions)}), more than the margin of"
            f" {_points(margin)}"
        )
    else:
        verdict = "undecided"
        reason = _undecided_words(interval, margin, questions, difference, alpha)
    if suspicious:
        reason += (
            f"; suspicious: {_points(difference)} better than the baseline, more than the margin:"
            " check that both were asked the same questions in the same way"
        )
    return Decision(verdict, reason, suspicious)


def smallest_decidable_margin(questions: int, flips: int = 0, *, alpha: float) -> float:
    """The margin below which right-or-wrong answers to so many questions can show nothing.

    A margin above this value can pass if `flips` answers change, evenly both ways (an odd one
    counts against the candidate); a margin at or below it cannot, however good the candidate is.
    With no flips this is z^2 / (n + z^2): 164 HumanEval answers cannot show a drop under 1.6
    points.

    Raises:
        ValueError: no questions, more flips than questions, or alpha out of range.
    """
    if questions < 1:
        raise ValueError("no questions: no margin can be decided")
    if not 0 <= flips <= questions:
        raise ValueError(f"flips must be between 0 and {questions}, not {flips}")
    if flips == 0:
        square = normal_quantile(alpha) ** 2
        return square / (questions + square)
    gains = flips // 2
    return -tango_interval(questions - flips, flips - gains, gains, 0, alpha).lower


def questions_to_decide(
    interval: Interval, margin: float, questions: int, difference: float
) -> int | None:
    """About how many questions would decide, if the difference and its spread stay as they are.

    The distance from the difference to its bound shrinks with the root of the number of questions.
    None where the difference lies on the margin itself, or where bound and difference coincide.
    """
    gap = abs(difference + margin)
    bound = interval.lower if difference > -margin else interval.upper
    spread = abs(difference - bound)
    if gap == 0 or spread == 0:
        return None
    needed = questions * (spread / gap) ** 2
    return math.ceil(needed) if needed < 1e9 else None


def _check(
    interval: Interval, margin: float, questions: int, difference: float, baseline: float
) -> None:
    if not 0 < margin < 1:
        raise ValueError(f"the margin must be between 0 and 1, not {margin}")
    if questions < 1:
        raise ValueError("a gate without questions has no verdict")
    values = {
        "lower bound": interval.lower,
        "upper bound": interval.upper,
        "difference": difference,
        "baseline": baseline,
    }
    for name, value in values.items():
        if not math.isfinite(value):
            raise ValueError(f"the {name} is {value}: a gate does not judge a missing value")
    if interval.lower > interval.upper:
        raise ValueError(f"the lower bound {interval.lower} is above the upper {interval.upper}")


def _pass_words(interval: Interval, margin: float, questions: int, alpha: float) -> str:
    at_most = (
        f"the drop is at most {_points(-interval.lower)}"
        if interval.lower < 0
        else f"the candidate is at least {_points(interval.lower)} better"
    )
    return (
        f"{at_most} ({_confidence(alpha)}, {_count(questions)}), inside the margin of"
        f" {_points(margin)}"
    )


def _undecided_words(
    interval: Interval, margin: float, questions: int, difference: float, alpha: float
) -> str:
    start = (
        f"the drop may be as large as {_points(-interval.lower)} ({_confidence(alpha)},"
        f" {_count(questions)}) and the margin is {_points(margin)}"
    )
    smallest = smallest_decidable_margin(questions, alpha=alpha)
    if interval.method == TANGO and margin <= smallest:
        return (
            f"{start}; {_count(questions)} cannot pass a margin under {_points(smallest)} even"
            " when no answer changes: needs more questions or a wider margin"
        )
    if interval.method == IDENTICAL:
        return (
            f"{start}; every difference was the same, and {_count(questions)} show no more than"
            " that: needs more questions or a wider margin"
        )
    needed = questions_to_decide(interval, margin, questions, difference)
    if needed is None:
        return f"{start}; needs more questions or a wider margin"
    return (
        f"{start}; needs more questions (about {needed} if the difference of"
        f" {_points(difference, sign=True)} stays) or a wider margin"
    )


def _blind_words(baseline: float, floor: float, questions: int) -> str:
    if floor > 0:
        return (
            f"the gate is blind: the baseline's {baseline:.1%} of {_count(questions)} is no better"
            f" than guessing ({floor:.1%}), so a drop could not be seen; use another form, more"
            " examples or another suite"
        )
    return (
        f"the gate is blind: the baseline scores nothing on {_count(questions)}, so a drop could"
        " not be seen; use other questions or another suite"
    )


def _floored_words(baseline: float, floor: float, margin: float, questions: int) -> str:
    """A model that knows nothing would pass too, so passing would say nothing."""
    scores = "scores nothing" if floor == 0 else f"is no better than guessing ({floor:.1%})"
    return (
        f"the candidate {scores} on {_count(questions)}, where the baseline scores {baseline:.1%};"
        f" that this lies inside the margin of {_points(margin)} says nothing: needs a smaller"
        " margin and more questions"
    )


def _points(fraction: float, *, sign: bool = False) -> str:
    """A fraction in words, with enough digits that a small one is not shown as 0."""
    points = fraction * 100
    digits = 2 if points == 0 or abs(points) >= 0.01 else 4
    return f"{points:{'+' if sign else ''}.{digits}f} points"


def _confidence(alpha: float) -> str:
    return f"{100 * (1 - alpha):g} % confidence"


def _count(questions: int) -> str:
    return "1 question" if questions == 1 else f"{questions} questions"
