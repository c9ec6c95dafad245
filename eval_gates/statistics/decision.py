"""Verdict of a gate, with its reason, from the finding of its last look.

The null hypothesis of every gate is 'the candidate is worse than the baseline by the margin or
more'. A lower bound above it passes the gate, unless the gate is insensitive. Values are compared
unrounded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from eval_gates.statistics.assay_sensitivity import ChanceKind, SensitivityCheck
from eval_gates.statistics.bound import min_identical_values
from eval_gates.statistics.looks import Finding

Verdict = Literal["pass", "fail", "undecided"]

_MAX_QUESTIONS = 1_000_000  # no benchmark has as many


@dataclass(frozen=True)
class Scores:
    """Both models' scores, for the sensitivity and the reason."""

    baseline: float  # mean, in [0, 1]
    candidate: float  # mean, in [0, 1]
    flips: float  # share of questions whose score changed
    # By all of the baseline's answers, including questions that the candidate has not answered.
    sensitivity_checks: tuple[SensitivityCheck, ...] = ()
    full_baseline: float | None = None  # mean of all those answers; None: the same as `baseline`
    # Mean score of the candidate's answers, taken as answers to other questions.
    shuffled_score: float = 0.0


@dataclass(frozen=True)
class Decision:
    """Verdict, its reason, and whether the candidate's gain is implausible."""

    verdict: Verdict
    reason: str
    suspicious: bool = False


def decide(finding: Finding, scores: Scores) -> Decision:
    """Return the verdict that a finding allows.

    - `pass`: the candidate is shown to be inside the margin;
    - `fail`: it is shown to be outside of it, also in an insensitive gate;
    - `undecided`: neither; or the margin is not shown to end above the chance baselines; or the
      candidate's answers are not shown to fit their own questions better than others.

    A gain above the margin is flagged: quantization does not improve a model.
    """
    values = (finding.lower, finding.upper, scores.baseline, scores.candidate)
    if not all(math.isfinite(value) for value in values):
        raise ValueError(f"a gate needs finite scores and bounds, not {values}")
    difference = scores.candidate - scores.baseline
    allowed = finding.comparison.allowed_drop(scores.baseline)
    suspicious = difference > allowed > 0
    insensitive = _describe_insensitivity(finding, scores)
    verdict: Verdict = "undecided"
    if finding.state == "fail":
        verdict, reason = "fail", _describe_failure(finding)
    elif insensitive:
        reason = insensitive
    elif finding.lower > finding.comparison.threshold and (
        scores.candidate == 0 or finding.state == "open"
    ):
        return Decision("undecided", _describe_unrelated_answers(finding, scores))
    elif finding.state == "pass":
        verdict, reason = "pass", _describe_pass(finding)
    else:
        reason = _describe_open(finding, scores, difference, allowed)
    if suspicious:
        reason += (
            f"; suspicious: {_points(difference)} better than the baseline, more than the margin:"
            " check that both answered the same questions, prompted in the same way"
        )
    return Decision(verdict, reason, suspicious)


def _describe_pass(finding: Finding) -> str:
    if finding.comparison.kind == "recovery":
        retained = (
            f"the candidate retains more than {100 * finding.comparison.size:g} % of the baseline"
        )
        return f"{retained} ({_describe_confidence(finding)})"
    shown = f"the candidate is at least {_points(finding.lower)} better"
    if finding.lower < 0:
        shown = f"the drop is at most {_points(-finding.lower)}"
    return f"{shown} ({_describe_confidence(finding)}), inside {finding.comparison.words}"


def _describe_failure(finding: Finding) -> str:
    if finding.comparison.kind == "recovery":
        retained = (
            f"the candidate retains at most {100 * finding.comparison.size:g} % of the baseline"
        )
        return f"{retained} ({_describe_confidence(finding)})"
    shown = f"the candidate is at least {_points(-finding.upper)} worse"
    return f"{shown} ({_describe_confidence(finding)}), not inside {finding.comparison.words}"


def _describe_open(finding: Finding, scores: Scores, difference: float, allowed: float) -> str:
    comparison = finding.comparison
    if comparison.kind == "recovery":
        start = f"{comparison.words} is neither shown nor refuted ({_describe_confidence(finding)})"
    else:
        start = (
            f"the drop may be as large as {_points(-finding.lower)}"
            f" ({_describe_confidence(finding)}), not inside {comparison.words}"
        )
    looser = "a wider margin" if comparison.kind == "points" else "a lower recovery"
    if comparison.kind == "points":
        least = min_identical_values(comparison.size, finding.alpha)
        if finding.planned < least:
            return (
                f"{start}; {_count(finding.planned)} cannot pass even if no answer changes, {least}"
                f" could: needs more questions or {looser}"
            )
    gap = allowed + difference
    if gap <= 0:
        return f"{start}; the drop so far is outside of it: more questions would probably fail it"
    if scores.flips == 0:
        return f"{start}; needs more questions or {looser}"
    # The width of a bound falls with the square root of their number.
    reach = comparison.threshold + gap - finding.lower
    needed = max(finding.n * (reach / gap) ** 2, finding.n + 1)
    stays = f"if the difference of {_points(difference, sign=True)} stays"
    if needed > _MAX_QUESTIONS:
        return f"{start}; needs {looser}: no benchmark has enough questions {stays}"
    return f"{start}; needs more questions (in all about {needed:.0f} {stays}) or {looser}"


_CHANCE_SCORES: dict[ChanceKind, str] = {
    "nothing": "a score of zero",
    "guessing": "the score of guesses",
    "empty": "the score of empty answers",
    "unrelated": "the score of its answers on other questions",
}


def _describe_insensitivity(finding: Finding, scores: Scores) -> str:
    insensitive = [
        check for check in scores.sensitivity_checks if check.p_insensitive > finding.alpha
    ]
    if not insensitive:
        return ""
    baseline = scores.baseline if scores.full_baseline is None else scores.full_baseline
    if baseline == 0:
        return (
            f"the gate is insensitive: the baseline scores 0 on {_count(finding.n)}, so no drop"
            " can be detected; use other questions or another suite"
        )
    worst = max(insensitive, key=lambda check: check.score)
    return (
        f"the gate is insensitive: {finding.comparison.words} is not shown to end above"
        f" {_CHANCE_SCORES[worst.kind]} ({worst.score:.1%}), as the baseline scores"
        f" {baseline:.1%} (p = {worst.p_insensitive:.2g}), so a model that lost everything could"
        " pass; use a stricter margin, more questions or another suite"
    )


def _describe_unrelated_answers(finding: Finding, scores: Scores) -> str:
    return (
        f"the candidate scores {scores.candidate:.1%} on {_count(finding.n)}, and its answers score"
        f" {scores.shuffled_score:.1%} on other questions: its answers are not shown to fit their"
        " own questions better than others, so a drop inside the margin proves nothing"
    )


def _describe_confidence(finding: Finding) -> str:
    confidence = f"{100 * (1 - finding.alpha):g} % confidence"
    if finding.n < finding.planned:
        look = f"look {finding.number} of {finding.looks}"
        return f"{confidence}, {look}: {finding.n} of {_count(finding.planned)}"
    return f"{confidence}, {_count(finding.n)}"


def _points(fraction: float, *, sign: bool = False) -> str:
    points = fraction * 100
    digits = 2 if points == 0 or abs(points) >= 0.01 else 4
    return f"{points:{'+' if sign else ''}.{digits}f} points"


def _count(questions: int) -> str:
    return "1 question" if questions == 1 else f"{questions} questions"
