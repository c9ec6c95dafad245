"""From a test's finding to a gate's verdict with its reason in words.

The null hypothesis of every gate is 'the candidate is worse than the baseline by the margin or
more'. A test that rejects it passes the gate, unless passing would say nothing: where the margin
reaches down to what a model scores that knows nothing, losing everything would pass too. Nothing is
rounded before it is compared; rounding is for the words only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from eval_gates.statistics.assay_sensitivity import Ignorance, SensitivityCheck
from eval_gates.statistics.comparison import Comparison
from eval_gates.statistics.paired import GRADED, IDENTICAL, least_identical
from eval_gates.statistics.power import least_questions
from eval_gates.statistics.question_rounds import expected_questions
from eval_gates.statistics.result import SEQUENTIAL, GateTestResult

Verdict = Literal["pass", "fail", "undecided"]

_TOO_MANY = 1_000_000  # questions; no benchmark has as many
_BOUND_TOLERANCE = 1e-6  # bounds are found by iteration; less is no contradiction of a verdict


@dataclass(frozen=True)
class Scores:
    """What both models scored, as far as words and blindness need it."""

    baseline: float  # mean, in [0, 1]
    candidate: float  # mean, in [0, 1]
    flips: float  # share of questions whose score changed
    flip_size: float  # by how much, on average; 0 where none did
    # Whether the margin ends above each kind of ignorance, by all of the baseline's answers, also
    # those to questions that the candidate was not asked.
    sights: tuple[SensitivityCheck, ...] = ()
    baseline_of_all: float | None = None  # mean of those; None where they are the same
    # What the candidate's answers score as answers to other questions.
    of_other_questions: float = 0.0
    p_says_nothing: float = 0.0  # of 'they do for any question'; see :func:`sight.swap_p_value`


@dataclass(frozen=True)
class Decision:
    """A gate's verdict, why, and whether the candidate is better than is believable."""

    verdict: Verdict
    reason: str
    suspicious: bool = False


def decide(finding: GateTestResult, scores: Scores, population: int | None = None) -> Decision:
    """The verdict that a finding allows.

    - `pass`: the candidate is shown to be better than the margin allows it to be worse;
    - `fail`: it is shown to be worse than that;
    - `undecided`: neither; or the gate is blind: the margin is not shown to end above what who
      knows nothing scores; or the candidate's answers are not shown to fit their own questions
      better than others.

    What is shown to be worse fails, in a blind gate too.

    A candidate better than the baseline by more than the margin is flagged as suspicious: a
    quantized model does not learn, so such a gain more often means that something else differs.
    """
    values = (finding.lower, finding.upper, scores.baseline, scores.candidate)
    if not all(math.isfinite(value) for value in values):
        raise ValueError(f"a gate does not judge a missing value: {values}")
    difference = scores.candidate - scores.baseline
    allowed = finding.comparison.allowed_drop(scores.baseline)
    suspicious = difference > allowed > 0
    blind = _blind_words(finding, scores)
    if finding.verdict == "fail":
        reason = _fail_words(finding)
    elif blind:
        reason = blind
    elif finding.verdict == "pass" and _says_nothing(finding, scores):
        return Decision("undecided", _stock_words(finding, scores))
    elif finding.verdict == "pass":
        reason = _pass_words(finding)
    else:
        reason = _open_words(finding, scores, difference, allowed, population)
    if suspicious:
        reason += (
            f"; suspicious: {_points(difference)} better than the baseline, more than the margin:"
            " check that both were asked the same questions in the same way"
        )
    if finding.verdict == "open" or (blind and finding.verdict == "pass"):
        return Decision("undecided", reason, suspicious)
    return Decision(finding.verdict, reason, suspicious)


def _pass_words(finding: GateTestResult) -> str:
    if finding.comparison.kind == "recovery":
        kept = f"the candidate keeps more than {100 * finding.comparison.size:g} % of the baseline"
        return f"{kept} ({_sureness(finding)})"
    return f"{_shown_words(finding)} ({_sureness(finding)}), inside {finding.comparison.words}"


def _shown_words(finding: GateTestResult) -> str:
    least = finding.lower
    if least < finding.comparison.threshold - _BOUND_TOLERANCE:
        return "the drop was shown to be small enough, though later answers point the other way"
    if least < 0:
        return f"the drop is at most {_points(-least)}"
    if least <= _BOUND_TOLERANCE:
        return "the candidate scores no worse"
    return f"the candidate is at least {_points(least)} better"


def _fail_words(finding: GateTestResult) -> str:
    if finding.comparison.kind == "recovery":
        kept = (
            f"the candidate keeps no more than {100 * finding.comparison.size:g} % of the baseline"
        )
        return f"{kept} ({_sureness(finding)})"
    shown = f"the candidate is at least {_points(-finding.upper)} worse"
    if finding.upper > finding.comparison.threshold + _BOUND_TOLERANCE:
        shown = "the drop was shown to be too large, though later answers point the other way"
    return f"{shown} ({_sureness(finding)}), not inside {finding.comparison.words}"


def _open_words(
    finding: GateTestResult,
    scores: Scores,
    difference: float,
    allowed: float,
    population: int | None,
) -> str:
    comparison = finding.comparison
    if comparison.kind == "recovery":
        start = f"{comparison.words} is neither shown nor refuted ({_sureness(finding)})"
    else:
        start = (
            f"the drop may be as large as {_points(-finding.lower)} ({_sureness(finding)}), not"
            f" inside {comparison.words}"
        )
    looser = "a wider margin" if comparison.kind == "points" else "a lower recovery"
    least = _count_least(finding, scores, population)
    if least is not None and finding.n < least:
        return (
            f"{start}; {_count(finding.n)} cannot pass this even when no answer changes, {least}"
            f" could: needs more questions or {looser}"
        )
    if finding.method == IDENTICAL:
        return (
            f"{start}; every difference was the same, and {_count(finding.n)} show no more than"
            f" that: needs more questions or {looser}"
        )
    gap = allowed + difference
    if gap <= 0:
        return f"{start}; so far it is not within it: more questions would rather fail it"
    if scores.flips == 0:
        return f"{start}; needs more questions or {looser}"
    stays = f"if the difference of {_points(difference, sign=True)} stays"
    needed = _count_needed(finding, scores, gap, population)
    if needed > _TOO_MANY:
        return f"{start}; needs {looser}: no benchmark has enough questions {stays}"
    return f"{start}; needs more questions (in all about {needed:.0f} {stays}) or {looser}"


def _count_needed(
    finding: GateTestResult, scores: Scores, gap: float, population: int | None
) -> float:
    """Questions in all that would pass, if the mean stays by `gap` above the threshold."""
    if finding.method == SEQUENTIAL:
        needed = expected_questions(
            Comparison.points(min(gap, 0.99)),
            finding.alpha,
            scores.flips,
            scores.flip_size,
            finding.planned,
        )
        needed = min(needed, population) if population is not None else needed
    else:  # a fixed bound comes closer with the root of their number
        reach = finding.comparison.threshold + gap - finding.lower
        needed = finding.n * (reach / gap) ** 2
    return max(needed, finding.n + 1)


def _count_least(finding: GateTestResult, scores: Scores, population: int | None) -> int | None:
    """Questions that could pass if no answer changed; None where none could, or it is not known."""
    comparison = finding.comparison
    if finding.method == SEQUENTIAL:
        return least_questions(
            comparison, finding.alpha, population, scores.baseline, finding.planned
        )
    if finding.method in (GRADED, IDENTICAL) and comparison.kind == "points":
        return least_identical(comparison.size, finding.alpha)
    return None


_UNINFORMED: dict[Ignorance, str] = {
    "nothing": "who answers nothing scores",
    "guessing": "guessing scores",
    "empty": "empty answers score",
    "unrelated": "its answers score on other questions",
}


def _blind_words(finding: GateTestResult, scores: Scores) -> str:
    """Why losing everything could pass too; empty where it could not."""
    blind = [sight for sight in scores.sights if sight.p_blind > finding.alpha]
    if not blind:
        return ""
    known = scores.baseline if scores.baseline_of_all is None else scores.baseline_of_all
    if known == 0:
        return (
            f"the gate is blind: the baseline scores nothing on {_count(finding.n)}, so a drop"
            " could not be seen; use other questions or another suite"
        )
    worst = max(blind, key=lambda sight: sight.score)
    return (
        f"the gate is blind: {finding.comparison.words} is not shown to end above what"
        f" {_UNINFORMED[worst.kind]} ({worst.score:.1%}), as the baseline scores {known:.1%}"
        f" (p = {worst.p_blind:.2g}), so one that lost everything could pass; use a stricter"
        " margin, more questions or another suite"
    )


def _says_nothing(finding: GateTestResult, scores: Scores) -> bool:
    """Whether the candidate scores nothing, or is not shown to answer what it was asked."""
    return scores.candidate == 0 or scores.p_says_nothing > finding.alpha


def _stock_words(finding: GateTestResult, scores: Scores) -> str:
    return (
        f"the candidate scores {scores.candidate:.1%} on {_count(finding.n)}, and its answers score"
        f" {scores.of_other_questions:.1%} on questions that they do not answer"
        f" (p = {scores.p_says_nothing:.2g}): they are not shown to say anything of what they were"
        " asked, so that the margin allows this says nothing either"
    )


def _sureness(finding: GateTestResult) -> str:
    confidence = f"{100 * (1 - finding.alpha):g} % confidence"
    if finding.decided_at is not None and finding.decided_at < finding.n:
        return f"{confidence}, decided after {finding.decided_at} of {_count(finding.n)}"
    return f"{confidence}, {_count(finding.n)}"


def _points(fraction: float, *, sign: bool = False) -> str:
    """A fraction in words, with enough digits that a small one is not shown as 0."""
    points = fraction * 100
    digits = 2 if points == 0 or abs(points) >= 0.01 else 4
    return f"{points:{'+' if sign else ''}.{digits}f} points"


def _count(questions: int) -> str:
    return "1 question" if questions == 1 else f"{questions} questions"
