"""From kept answers and a policy's margins to verdicts: a pure function, with no server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from eval_gates.records import GateReport, ThroughputReport, Verdict
from eval_gates.statistics.decision import decide
from eval_gates.statistics.paired import Interval, bca_interval, tango_interval
from eval_gates.suites.mmlu import GUESSING
from recipes.schema import AnySuite, Family

Answers = Sequence[Mapping[str, Any]]
BOOTSTRAP_SEED = 20240814


def judge_suite(
    name: str,
    suite: AnySuite,
    *,
    baseline: Answers,
    candidate: Answers,
    family: Family,
    alpha: float,
) -> GateReport:
    """Compare a variant's answers with the baseline's, question by question.

    Args:
        name: of the suite in the policy.
        suite: its settings; margins by recipe family.
        baseline: rows with id, prompt_sha256 and score in [0, 1].
        candidate: rows to the same questions.
        family: of the variant's recipe.
        alpha: error rate of each one-sided bound.

    Raises:
        ValueError: the two sides were not asked the same questions with the same prompts, or a
            score is missing.
    """
    check_paired(name, baseline, candidate)
    before = [float(row["score"]) for row in baseline]
    after = [float(row["score"]) for row in candidate]
    n = len(before)
    interval = paired_interval(before, after, alpha)
    margin = suite.margins[family]
    mean_before, mean_after = sum(before) / n, sum(after) / n
    difference = sum(a - b for a, b in zip(after, before, strict=True)) / n
    decision = decide(
        interval,
        margin,
        questions=n,
        difference=difference,
        baseline=mean_before,
        alpha=alpha,
        floor=GUESSING if suite.kind == "mmlu" else 0.0,
    )
    return GateReport(
        suite=name,
        metric=metric_of(suite),
        n=n,
        baseline=mean_before,
        candidate=mean_after,
        difference=difference,
        bound=interval.lower,
        upper_bound=interval.upper,
        margin=margin,
        alpha=alpha,
        method=interval.method,
        flips=sum(a != b for a, b in zip(after, before, strict=True)),
        verdict=decision.verdict,
        reason=decision.reason,
        suspicious=decision.suspicious,
    )


def check_paired(name: str, baseline: Answers, candidate: Answers) -> None:
    """Raise ValueError unless both sides answered the same questions, asked the same way.

    Every score must be there, too, and in [0, 1].
    """
    if len(baseline) != len(candidate) or not baseline:
        raise ValueError(f"{name}: {len(baseline)} answers against {len(candidate)}")
    for row in (*baseline, *candidate):
        score = row.get("score")
        if not isinstance(score, (int, float)) or not 0 <= score <= 1:  # NaN is refused, too
            raise ValueError(f"{name}: question {row['id']} has the score {score}")
    for ours, theirs in zip(baseline, candidate, strict=True):
        for key in ("id", "prompt_sha256"):
            if ours[key] != theirs[key]:
                raise ValueError(f"{name}: '{key}' differs for question {ours['id']}")


def paired_interval(before: Sequence[float], after: Sequence[float], alpha: float) -> Interval:
    """Tango's score interval for right-or-wrong answers, the BCa bootstrap for other scores."""
    pairs = list(zip(before, after, strict=True))
    if all(score in (0.0, 1.0) for pair in pairs for score in pair):
        return tango_interval(
            both=pairs.count((1.0, 1.0)),
            only_baseline=pairs.count((1.0, 0.0)),
            only_candidate=pairs.count((0.0, 1.0)),
            neither=pairs.count((0.0, 0.0)),
            alpha=alpha,
        )
    return bca_interval([b - a for a, b in pairs], alpha, BOOTSTRAP_SEED)


def metric_of(suite: AnySuite) -> str:
    """What the mean is of."""
    if suite.kind == "mmlu":
        return "acc" if suite.form == "letter" else "acc_norm"
    return "pass@1" if suite.kind == "humaneval" else suite.metric


def overall(gates: Sequence[GateReport], throughput: ThroughputReport) -> tuple[Verdict, str]:
    """All gates must pass: one fail fails, else one undecided leaves it undecided."""
    verdicts = [(gate.suite, gate.verdict) for gate in gates]
    verdicts.append(("throughput", throughput.verdict))
    for verdict in ("fail", "undecided"):
        names = [name for name, own in verdicts if own == verdict]
        if names:
            words = "failed" if verdict == "fail" else "could not be decided"
            return ("fail" if verdict == "fail" else "undecided"), f"{', '.join(names)} {words}"
    return "pass", f"all {len(verdicts)} gates passed"
