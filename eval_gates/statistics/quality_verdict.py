"""Verdict of a suite's gate from the last look's finding.

Null hypothesis: the candidate is worse by the margin or more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from eval_gates.gate_result import Verdict
from eval_gates.statistics.assay_sensitivity import ChanceKind, SensitivityCheck
from eval_gates.statistics.looks import Finding, min_unchanged_values

MAX_CUT_OFF = 0.05  # of the baseline's answers
_MAX_QUESTIONS = 1_000_000  # no benchmark has as many
_CHANCE_SCORES: dict[ChanceKind, str] = {
    "nothing": "a score of zero",
    "guessing": "the score of guesses",
    "empty": "the score of empty answers",
    "unrelated": "the score of its answers on other questions",
}


@dataclass(frozen=True)
class Scores:
    """Both models' scores."""

    baseline: float  # mean, in [0, 1]
    candidate: float  # mean, in [0, 1]
    flips: float  # share of values whose score changed
    # By all of the baseline's answers, including those without a candidate's.
    sensitivity_checks: tuple[SensitivityCheck, ...] = ()
    full_baseline: float = 0.0  # mean of all those answers
    # The candidate's mean score on other questions.
    shuffled_score: float = 0.0
    cut_off: float = 0.0  # share of the baseline's answers that say little, as they were cut off
    max_gain: float | None = None  # largest plausible one; None: as much as may be lost
    unit: str = "questions"  # of the values: questions or clusters


@dataclass(frozen=True)
class QualityVerdict:
    """Verdict, its reason, and whether a gain is implausible, and shown."""

    verdict: Verdict
    reason: str
    suspicious: bool = False


def judge_scores(finding: Finding, scores: Scores) -> QualityVerdict:
    """Return the verdict that a finding allows.

    `pass` needs a sensitive gate, and answers that fit their own questions better than others. A
    shown gain above the margin does not pass: quantization does not improve a model, so the sides
    were asked differently. Nor do answers to a baseline that was cut off: their loss is unseen.
    """
    values = (finding.lower, finding.upper, scores.baseline, scores.candidate)
    if not all(math.isfinite(value) for value in values):
        raise ValueError(f"a gate needs finite scores and bounds, not {values}")
    comparison = finding.comparison
    difference = scores.candidate - scores.baseline
    margin = comparison.allowed_drop(scores.baseline)
    largest = margin if scores.max_gain is None else scores.max_gain
    is_gain_shown = finding.lower > comparison.threshold + margin
    suspicious = difference > largest > 0 and is_gain_shown
    insensitive = [
        check for check in scores.sensitivity_checks if check.p_insensitive > finding.alpha
    ]
    verdict: Verdict = "undecided"
    unit = scores.unit
    if finding.state == "fail":
        verdict = "fail"
        reason = _describe(finding, f"not inside {comparison.words}", unit)
    elif insensitive:
        worst = max(insensitive, key=lambda check: check.score)
        reason = (
            f"the gate is insensitive: {comparison.words} is not shown to end above"
            f" {_CHANCE_SCORES[worst.kind]} ({worst.score:.1%}), as the baseline scores"
            f" {scores.full_baseline:.1%} (p = {worst.p_insensitive:.2g}), so a model that lost"
            f" everything could pass; {_describe_sensitivity(finding, worst.p_insensitive, unit)}"
        )
    elif finding.lower > comparison.threshold and (
        scores.candidate == 0 or finding.state == "open"
    ):
        reason = (
            f"the candidate scores {scores.candidate:.1%} on {finding.n} {scores.unit}, and its"
            f" answers score {scores.shuffled_score:.1%} on other questions: they are not shown to"
            " fit their own questions better, so a drop inside the margin proves nothing"
        )
    elif finding.state == "pass" and scores.cut_off > MAX_CUT_OFF:
        reason = (
            f"{scores.cut_off:.1%} of the baseline's answers were cut off, at most"
            f" {MAX_CUT_OFF:.0%} may be: what they would have scored is not known; raise"
            " 'max_tokens' of the suite"
        )
    elif finding.state == "pass":
        verdict = "pass"
        reason = _describe(finding, f"inside {comparison.words}", unit)
    else:
        open_margin = f"not shown to be inside {comparison.words}"
        reason = f"{_describe(finding, open_margin, unit)}; "
        reason += _describe_needs(finding, scores, difference)
    if suspicious:
        verdict = "undecided" if verdict == "pass" else verdict
        reason += (
            f"; suspicious: {_points(difference)} better than the baseline, more than"
            f" {_points(largest)}: check that both are prompted in the same way and that nothing"
            " else made the baseline worse; if the gain is real, raise 'max_gain' of the suite"
        )
    return QualityVerdict(verdict, reason, suspicious)


def _describe(finding: Finding, margin: str, unit: str) -> str:
    shown = {
        "pass": f"the drop is at most {_points(max(0.0, -finding.lower))}, {margin}",
        "fail": f"the drop is at least {_points(-finding.upper)}, {margin}",
        "open": f"the drop may be as large as {_points(-finding.lower)}, {margin}",
    }
    if finding.comparison.kind == "recovery":
        share = f"{100 * finding.comparison.size:g} % of the baseline"
        shown = {
            "pass": f"more than {share} is kept",
            "fail": f"less than {share} is kept",
            "open": f"{share} is neither shown nor refuted to be kept",
        }
    asked = f"{finding.n} {unit}"
    if finding.n < finding.planned:
        look = f"look {finding.number} of {finding.looks}"
        asked = f"{look}: {finding.n} of {finding.planned} {unit}"
    return f"{shown[finding.state]} ({100 * (1 - finding.alpha):g} % confidence, {asked})"


def _describe_sensitivity(finding: Finding, p: float, unit: str) -> str:
    if not 0 < p < 0.5:
        return f"needs another suite, or more {unit} with a stricter margin"
    # If the scores stay, p falls exponentially with their number.
    needed = max(finding.planned + 1, finding.planned * math.log(finding.alpha) / math.log(p))
    return f"needs more {unit} (in all about {needed:.0f} if these scores stay) or another suite"


def _describe_needs(finding: Finding, scores: Scores, difference: float) -> str:
    comparison = finding.comparison
    unit = scores.unit
    is_points = comparison.kind == "points"
    looser = "a wider margin" if is_points else "a lower recovery"
    if is_points and finding.planned < (
        least := min_unchanged_values(comparison.size, finding.alpha)
    ):
        return (
            f"{finding.planned} {unit} cannot pass even if no answer changes, {least} could:"
            f" needs more {unit} or {looser}"
        )
    gap = comparison.allowed_drop(scores.baseline) + difference
    if gap <= 0:
        return f"the drop so far is outside of it: more {unit} would probably fail it"
    if scores.flips == 0:
        return f"needs more {unit} or {looser}"
    # A bound's width falls with the square root of their number.
    reach = comparison.threshold + gap - finding.lower
    needed = max(finding.n * (reach / gap) ** 2, finding.n + 1)
    stays = f"if the difference of {_points(difference, sign=True)} stays"
    if needed > _MAX_QUESTIONS:
        return f"needs {looser}: no benchmark has enough {unit} {stays}"
    return f"needs more {unit} (in all about {needed:.0f} {stays}) or {looser}"


def _points(fraction: float, *, sign: bool = False) -> str:
    points = fraction * 100
    digits = 4 if 0 < abs(points) < 0.01 else 2
    return f"{points:{'+' if sign else ''}.{digits}f} points"
