"""A suite's gate: its verdict from stored answers and the policy's margins, by pure functions.

Null hypothesis: the candidate is worse by the margin or more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from eval_gates.clusters import group_by_cluster, means
from eval_gates.depth import report_depths
from eval_gates.gate_result import SCORE, Side, Verdict
from eval_gates.quality_result import (
    AnswerLengths,
    NatsLost,
    NoiseFloor,
    QualityResult,
    report_parts,
)
from eval_gates.rows import Answer
from eval_gates.statistics.assay_sensitivity import (
    ChanceKind,
    SensitivityCheck,
    check_sensitivities,
    insensitive_checks,
)
from eval_gates.statistics.bound import mean_bounds
from eval_gates.statistics.comparison import LOST_IN_LARGE_CLUSTERS
from eval_gates.statistics.looks import Finding, min_unchanged_values
from eval_gates.statistics.lost_groups import LostGroup, find_doubtful_groups, find_lost_groups
from eval_gates.statistics.parts import split_by_part
from eval_gates.stopping import GateRule, look_at
from eval_gates.suites.suite_kind import kind_of
from recipes.policy import AnySuite
from recipes.schema import Family

Answers = Sequence[Answer]


def gate_rule_of(suite: AnySuite, family: Family, alpha: float) -> GateRule:
    """Return the rule of a policy's suite."""
    return GateRule(
        tier=suite.tier,
        margin=suite.margins[family],
        alpha=alpha,
        group=kind_of(suite).judged_group,
        takes_all=suite.parts_by is not None,
    )


def judge_quality(
    name: str,
    suite: AnySuite,
    rule: GateRule,
    *,
    metric: str,
    baseline: Answers,
    candidate: Answers,
    again: Answers,
    guessing: float,
    asked_twice: Side = "baseline",
) -> QualityResult:
    """Compare a variant's answers with the baseline's.

    Answers are in the order of asking. `again` has the second ones of the side that was
    `asked_twice`. `guessing` is the chance-level mean score. ValueError if prompts differ, or
    answers are missing.
    """
    kind = kind_of(suite)
    floor = floor_of(name, baseline if asked_twice == "baseline" else candidate, again, asked_twice)
    answers = (*baseline, *candidate)
    if kind.scores_unrelated and any(answer.unrelated is None for answer in answers):
        raise ValueError(f"{name}: the answers were not scored against other questions")
    whole = (baseline[: len(candidate)], candidate)
    check_paired(name, *whole)
    baseline = rule.counted(baseline)
    candidate = rule.counted(candidate)
    if not candidate:
        raise ValueError(f"{name}: no answer is of the group '{rule.group}'")
    checks = check_sensitivities(baseline, guessing, rule.comparison)
    finding = find_difference(name, rule, baseline, candidate, checks)
    n = finding.n
    # Answers after the look that decides change nothing.
    rows = sum(map(len, group_by_cluster(candidate)[:n]))
    before = baseline[:rows]
    after = candidate[:rows]
    pairs = zip(means(before, "score"), means(after, "score"), strict=True)
    differences = [theirs - ours for ours, theirs in pairs]
    flips = sum(difference != 0 for difference in differences)
    lengths = answer_lengths(baseline)
    # Where every question is asked at any rate, parts are judged and shown by all of them.
    shown = whole if kind.asks_baseline_twice else (before, after)
    old, new = map(rule.counted, shown)
    by_field = split_by_part(old, new)
    if suite.parts_by and not by_field:
        raise ValueError(f"{name}: no answer names its part, by '{suite.parts_by}'")
    partitions = [*kind.partitions(old, new), *by_field]
    scores = Scores(
        baseline=mean_of(before, "score"),
        candidate=mean_of(after, "score"),
        flips=flips / n,
        sensitivity_checks=tuple(checks),
        full_baseline=mean_of(baseline, "score"),
        shuffled_score=0.0 if after[0].unrelated is None else mean_of(after, "unrelated"),
        cut_off=0.0 if lengths is None or kind.reads_cut_off else lengths.truncated,
        max_gain=suite.max_gain,
        lost_groups=find_lost_groups(rule.comparison, rule.alpha, partitions)
        if finding.is_inside or n == finding.planned
        else (),
        is_lost_by_question=rule.comparison.is_lost_by_question(
            [row.score for row in old], [row.score for row in new]
        ),
        unit="clusters" if suite.cluster_by else "questions",
    )
    judged = judge_scores(finding, scores)
    doubtful: Sequence[LostGroup] = ()
    if judged.verdict == "pass":
        doubtful = find_doubtful_groups(rule.comparison, rule.alpha, partitions)
    nats = nats_lost(before, after)
    counted = f"{n:,} of {finding.planned:,}" if n < finding.planned else f"{n:,}"
    return QualityResult(
        lost=[group.name for group in scores.lost_groups],
        doubtful=[_describe_loss(group, scores.unit) for group in doubtful],
        **_change(finding, differences, scores),
        name=name,
        metric=metric,
        tier=rule.tier,
        prompt_format=suite.prompt_format,
        n=n,
        counted=f"{counted} clusters" if suite.cluster_by else counted,
        unit=SCORE,
        planned=finding.planned,
        look=finding.number,
        baseline=scores.baseline,
        candidate=scores.candidate,
        estimate=sum(differences) / n,
        bound=finding.lower,
        upper_bound=finding.upper,
        threshold=rule.comparison.threshold,
        margin=rule.margin.words,
        alpha=rule.alpha,
        p_value=max(finding.p_value, *(check.p_insensitive for check in checks)),
        cluster=suite.cluster_by,
        parts_by=suite.parts_by,
        flips=flips,
        gains=sum(difference > 0 for difference in differences),
        baseline_lengths=answer_lengths(before),
        candidate_lengths=answer_lengths(after),
        noise_floor=floor,
        nats=nats,
        depths=report_depths(before, after, kind.depth),
        groups=[
            *kind.groups(*shown),
            *(report for parts in by_field for report in report_parts(parts, "field")),
        ],
        verdict=judged.verdict,
        reason=f"{_describe_scores(scores, n, nats)}; {judged.reason}",
        suspicious=judged.suspicious,
    )


def find_difference(
    name: str,
    rule: GateRule,
    baseline: Answers,
    candidate: Answers,
    checks: Sequence[SensitivityCheck],
) -> Finding:
    """Return the look that decides, as asking found it; ValueError if answers are missing."""
    planned = len(group_by_cluster(baseline))
    before = [row.score for row in baseline[: len(candidate)]]
    can_pass = not insensitive_checks(checks, rule.alpha)
    finding = look_at(rule, before, candidate, planned, can_pass=can_pass)
    if finding.state == "open" and finding.n != planned:
        missing = planned - finding.n
        raise ValueError(f"{name}: the answers to {missing} of {planned} values are missing")
    return finding


def _change(finding: Finding, differences: Sequence[float], scores: Scores) -> dict[str, Any]:
    """Return bounds of the change of the mean score, what it may be, and the share retained."""
    comparison = finding.comparison
    if comparison.kind == "points":
        return {"lower": finding.lower, "upper": finding.upper, "allowed": comparison.threshold}
    change = mean_bounds(differences, finding.level)
    return {
        "lower": change.lower,
        "upper": change.upper,
        "allowed": -comparison.allowed_drop(scores.baseline),
        "kept": scores.candidate / scores.baseline if scores.baseline > 0 else 0.0,
    }


def _describe_scores(scores: Scores, n: int, nats: NatsLost | None) -> str:
    right = [scores.baseline * n, scores.candidate * n]
    before, after = map(round, right)
    if nats is None and all(abs(count - round(count)) < 1e-6 for count in right):
        same = f"{after:,} of {n:,}"
        return f"{same} on both sides" if before == after else f"{same}, the baseline {before:,}"
    lost = f", {nats.mean:.3f} +- {nats.error:.3f} nats a token lost" if nats is not None else ""
    return f"{scores.candidate:.1%}, the baseline {scores.baseline:.1%}{lost}"


def nats_lost(baseline: Answers, candidate: Answers) -> NatsLost | None:
    """Return the loss of a token's log-probability, if recorded."""
    if any(row.nats is None for row in (*baseline, *candidate)):
        return None
    before, after = (means(rows, "nats") for rows in (baseline, candidate))
    lost = [b - a for a, b in zip(before, after, strict=True)]
    error = stdev(lost) / math.sqrt(len(lost)) if len(lost) > 1 else 0.0
    tenths = [min(9, int(10 * row.score)) for row in candidate]
    return NatsLost(mean=fmean(lost), error=error, shares=[tenths.count(n) for n in range(10)])


def mean_of(rows: Answers, key: str) -> float:
    """Return a key's mean; each cluster counts as one."""
    values = means(rows, key)
    return sum(values) / len(values)


def answer_lengths(rows: Answers) -> AnswerLengths | None:
    """Return the lengths of generated answers, each sample counted."""
    if not any(row.tokens for row in rows):
        return None
    samples = sum(len(row.tokens) for row in rows)
    return AnswerLengths(
        tokens=sum(sum(row.tokens) for row in rows) / samples,
        truncated=sum(row.truncated for row in rows) / samples,
        unclosed=sum(row.unclosed for row in rows) / samples,
        unread=sum(row.unread for row in rows) / samples,
    )


def check_paired(name: str, baseline: Answers, candidate: Answers) -> None:
    """Raise ValueError unless both sides answered the same prompts."""
    if len(baseline) != len(candidate) or not baseline:
        raise ValueError(f"{name}: {len(baseline)} answers against {len(candidate)}")
    for ours, theirs in zip(baseline, candidate, strict=True):
        for key in ("id", "prompt_sha256"):
            if getattr(ours, key) != getattr(theirs, key):
                raise ValueError(f"{name}: '{key}' differs for question {ours.id}")
    if len({bool(row.tokens) for row in (*baseline, *candidate)}) > 1:
        raise ValueError(f"{name}: some answers have no tokens")


def floor_of(
    name: str, first: Answers, again: Answers, side: Side = "baseline"
) -> NoiseFloor | None:
    """Return how often the repeated side's scores changed."""
    asked = min(len(first), len(again))
    if not asked:
        return None
    check_paired(f"{name}, asked again", first[:asked], again[:asked])
    pairs = zip(first[:asked], again[:asked], strict=True)
    flips = sum(one.score != other.score for one, other in pairs)
    return NoiseFloor(n=asked, flips=flips, side=side)


# --- the verdict, by the last look's finding ---

MAX_NAMED = 5  # of the groups that are lost
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
    lost_groups: tuple[LostGroup, ...] = ()
    is_lost_by_question: bool = False  # too much of the score, with each question counted once
    unit: str = "questions"  # of the values: questions or clusters


@dataclass(frozen=True)
class QualityVerdict:
    """Verdict, its reason, and whether a gain is implausible, and shown."""

    verdict: Verdict
    reason: str
    suspicious: bool = False


def judge_scores(finding: Finding, scores: Scores) -> QualityVerdict:
    """Return the verdict that a finding allows.

    `pass` needs a sensitive gate, answers that fit their own questions better than others, no group
    that is shown to lose more, and no loss beyond the margin with each question counted once. A
    part by the policy's `parts_by` that is shown to lose more fails it, once all are asked. A
    shown gain above the margin does not pass: quantization does not improve a model, so the sides
    were asked differently. Nor do answers to a baseline that was cut off: their loss is unseen.
    """
    values = (finding.lower, finding.upper, scores.baseline, scores.candidate)
    if not all(math.isfinite(value) for value in values):
        raise ValueError(f"a gate needs finite scores and bounds, not {values}")
    comparison = finding.comparison
    declared = [group for group in scores.lost_groups if group.is_declared]
    difference = scores.candidate - scores.baseline
    margin = comparison.allowed_drop(scores.baseline)
    largest = margin if scores.max_gain is None else scores.max_gain
    is_gain_shown = finding.lower > comparison.threshold + margin
    suspicious = difference > largest > 0 and is_gain_shown
    insensitive = insensitive_checks(scores.sensitivity_checks, finding.alpha)
    verdict: Verdict = "undecided"
    unit = scores.unit
    if finding.state == "fail":
        verdict = "fail"
        reason = _describe(finding, f"not inside {comparison.words}", unit)
    elif declared and finding.n == finding.planned:
        verdict = "fail"
        inside = "inside" if finding.lower > comparison.threshold else "not shown to be inside"
        reason = _describe(finding, f"{inside} {comparison.words}", unit)
        reason += f"; of the parts that the policy names, {_describe_lost(declared, unit)}"
        if insensitive:
            reason += "; the gate on the mean is insensitive"
    elif insensitive:
        worst = max(insensitive, key=lambda check: check.score)
        reason = (
            f"the gate is insensitive: {comparison.words} is not shown to end above"
            f" {_CHANCE_SCORES[worst.kind]} ({worst.score:.1%}), as the baseline scores"
            f" {scores.full_baseline:.1%} (p = {worst.p_insensitive:.2g}), so a model that lost"
            f" everything could pass; {_describe_sensitivity(finding, worst.p_insensitive, unit)}"
        )
    elif finding.lower > comparison.threshold and (scores.candidate == 0 or not finding.is_inside):
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
    elif finding.is_inside and scores.lost_groups:
        inside = _describe(finding, f"inside {comparison.words}", unit)
        reason = f"{inside}, but not in each group: {_describe_lost(scores.lost_groups, unit)}"
    elif finding.is_inside and scores.is_lost_by_question:
        inside = _describe(finding, f"inside {comparison.words}", unit)
        reason = f"{inside}, but {LOST_IN_LARGE_CLUSTERS}"
    elif finding.state == "pass":
        verdict = "pass"
        reason = _describe(finding, f"inside {comparison.words}", unit)
    else:
        open_margin = f"not shown to be inside {comparison.words}"
        reason = f"{_describe(finding, open_margin, unit)}; "
        if scores.lost_groups:
            reason += f"by itself, {_describe_lost(scores.lost_groups, unit)}"
        else:
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
    # An insensitive gate is open where the bound is inside.
    state = "pass" if finding.lower > finding.comparison.threshold else finding.state
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
    return f"{shown[state]} ({100 * (1 - finding.alpha):g} % confidence, {asked})"


def _describe_loss(group: LostGroup, unit: str) -> str:
    return f"{group.name} loses at least {_points(group.drop)} ({group.n:,} {unit})"


def _describe_lost(groups: Sequence[LostGroup], unit: str) -> str:
    words = [_describe_loss(group, unit) for group in groups[:MAX_NAMED]]
    if len(groups) > MAX_NAMED:
        words.append(f"{len(groups) - MAX_NAMED} others lose more than is allowed, too")
    return ", ".join(words)


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
