"""A suite's gate: its verdict from stored answers and the policy's margins, by pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from statistics import fmean, stdev
from typing import Literal

from eval_gates.clusters import group_by_cluster, means
from eval_gates.depth import report_depths
from eval_gates.gate_result import SCORE
from eval_gates.quality_result import AnswerLengths, NatsLost, NoiseFloor, QualityResult
from eval_gates.rows import Answer
from eval_gates.statistics.assay_sensitivity import check_sensitivities, own_gains
from eval_gates.statistics.bound import mean_bounds
from eval_gates.statistics.looks import find
from eval_gates.statistics.quality_verdict import Scores, judge_scores
from eval_gates.stopping import GateRule
from eval_gates.suites.suite_kind import kind_of
from recipes.policy import AnySuite

Answers = Sequence[Answer]
ArmSide = Literal["baseline", "candidate"]


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
    asked_twice: ArmSide = "baseline",
) -> QualityResult:
    """Compare a variant's answers with the baseline's.

    Answers are in the order of asking. `again` has the second ones of the side that was
    `asked_twice`. `guessing` is the chance-level mean score. ValueError if prompts differ, or
    answers are missing.
    """
    floor = floor_of(name, baseline if asked_twice == "baseline" else candidate, again, asked_twice)
    kind = kind_of(suite)
    answers = (*baseline, *candidate)
    if kind.scores_unrelated and any(answer.unrelated is None for answer in answers):
        raise ValueError(f"{name}: the answers were not scored against other questions")
    all_of_baseline = baseline
    planned = len(group_by_cluster(baseline))
    baseline = baseline[: len(candidate)]
    check_paired(name, baseline, candidate)
    groups = group_by_cluster(candidate)
    before = means(group_by_cluster(baseline), "score")
    after = means(groups, "score")
    comparison = rule.comparison
    sensitivity_checks = check_sensitivities(all_of_baseline, guessing, comparison)
    finding = find(
        before,
        after,
        comparison,
        rule.alpha,
        planned,
        own_gains(candidate),
        can_pass=all(check.p_insensitive <= rule.alpha for check in sensitivity_checks),
    )
    n = finding.n
    if finding.state == "open" and n != planned:
        raise ValueError(f"{name}: the answers to {planned - n} of {planned} values are missing")
    # Answers after the look that decides change nothing.
    rows = sum(map(len, groups[:n]))
    asked = (baseline, candidate)
    baseline = baseline[:rows]
    candidate = candidate[:rows]
    before = before[:n]
    after = after[:n]
    differences = [a - b for a, b in zip(after, before, strict=True)]
    flips = sum(difference != 0 for difference in differences)
    lengths = answer_lengths(all_of_baseline)
    scores = Scores(
        baseline=sum(before) / n,
        candidate=sum(after) / n,
        flips=flips / n,
        sensitivity_checks=tuple(sensitivity_checks),
        full_baseline=mean_of(all_of_baseline, "score"),
        shuffled_score=0.0 if candidate[0].unrelated is None else mean_of(candidate, "unrelated"),
        cut_off=0.0 if lengths is None or kind.reads_cut_off else lengths.truncated,
        max_gain=suite.max_gain,
        unit="clusters" if suite.cluster_by else "questions",
    )
    judged = judge_scores(finding, scores)
    bounds = (finding.lower, finding.upper)
    allowed = comparison.threshold
    kept = None
    if comparison.kind == "recovery":
        change = mean_bounds(differences, finding.level)
        bounds = (change.lower, change.upper)
        allowed = -comparison.allowed_drop(scores.baseline)
        kept = scores.candidate / scores.baseline if scores.baseline > 0 else 0.0
    nats = nats_lost(baseline, candidate)
    counted = f"{n:,} of {planned:,}" if n < planned else f"{n:,}"
    return QualityResult(
        name=name,
        metric=metric,
        tier=rule.tier,
        prompt_format=suite.prompt_format,
        n=n,
        counted=f"{counted} clusters" if suite.cluster_by else counted,
        unit=SCORE,
        planned=planned,
        look=finding.number,
        baseline=scores.baseline,
        candidate=scores.candidate,
        estimate=sum(differences) / n,
        lower=bounds[0],
        upper=bounds[1],
        bound=finding.lower,
        upper_bound=finding.upper,
        threshold=comparison.threshold,
        allowed=allowed,
        kept=kept,
        margin=rule.margin.words,
        alpha=rule.alpha,
        p_value=max(finding.p_value, *(check.p_insensitive for check in sensitivity_checks)),
        cluster=suite.cluster_by,
        flips=flips,
        gains=sum(difference > 0 for difference in differences),
        baseline_lengths=answer_lengths(baseline),
        candidate_lengths=answer_lengths(candidate),
        noise_floor=floor,
        nats=nats,
        depths=report_depths(baseline, candidate, kind.depth),
        # Other gates had all turns asked, so their curve is of all.
        groups=kind.groups(*(asked if kind.asks_baseline_twice else (baseline, candidate))),
        verdict=judged.verdict,
        reason=f"{_describe_scores(scores, n, nats)}; {judged.reason}",
        suspicious=judged.suspicious,
    )


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
    before, after = (means(group_by_cluster(rows), "nats") for rows in (baseline, candidate))
    lost = [b - a for a, b in zip(before, after, strict=True)]
    error = stdev(lost) / sqrt(len(lost)) if len(lost) > 1 else 0.0
    tenths = [min(9, int(10 * row.score)) for row in candidate]
    return NatsLost(mean=fmean(lost), error=error, shares=[tenths.count(n) for n in range(10)])


def mean_of(rows: Answers, key: str) -> float:
    """Return a key's mean; each cluster counts as one."""
    values = means(group_by_cluster(rows), key)
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
    name: str, first: Answers, again: Answers, side: ArmSide = "baseline"
) -> NoiseFloor | None:
    """Return how often the repeated side's scores changed."""
    asked = min(len(first), len(again))
    if not asked:
        return None
    check_paired(f"{name}, asked again", first[:asked], again[:asked])
    pairs = zip(first[:asked], again[:asked], strict=True)
    flips = sum(one.score != other.score for one, other in pairs)
    return NoiseFloor(n=asked, flips=flips, side=side)
