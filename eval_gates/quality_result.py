"""What `judge` records of one suite: a gate's result, with scores, flips, lengths and groups."""

from __future__ import annotations

import math
from typing import Any, Literal

from pydantic import Field

from eval_gates.gate_result import GateResult
from eval_gates.number_format import format_percent
from pipeline.core.record import Record


class NoiseFloor(Record):
    """Changes by serving alone, from a repeated baseline: greedy is not bit-stable."""

    n: int = Field(description="questions that the baseline was asked twice")
    flips: int = Field(description="of these, how many scores differed")


class ChanceBaseline(Record):
    """Chance-level model that the margin must exclude."""

    kind: Literal["nothing", "guessing", "empty", "unrelated"] = Field(
        description="scores 0; guesses a choice; answers nothing; answers another question"
    )
    score: float = Field(description="mean score, 0 to 1, over the baseline's questions")
    p_value: float = Field(
        description="of 'the margin reaches down to it'; the gate is insensitive unless it is "
        "at most alpha"
    )


class GroupReport(Record):
    """Scores of one subject, or group of subjects, of a suite."""

    group: str
    is_subject: bool = Field(
        description="a subject, or one task of several; else a group of subjects"
    )
    n: int
    baseline: float = Field(description="mean score, 0 to 1")
    candidate: float = Field(description="mean score, 0 to 1")
    flips: int = Field(description="questions whose score changed")


class AnswerLengths(Record):
    """One side's generated answers, each sample counted."""

    tokens: float = Field(description="mean tokens of an answer, thoughts included")
    truncated: float = Field(description="share that reached the largest number of tokens")
    unclosed: float = Field(description="share whose thoughts have no end")
    unread: float = Field(
        0.0, description="share scored 0 unread: unfinished, or without code that can be read"
    )


class NatsLost(Record):
    """Log-probability that a candidate gives the baseline's tokens less than the baseline does."""

    mean: float = Field(description="nats a token")
    error: float = Field(description="standard error of the mean over conversations")
    shares: list[int] = Field(
        [], max_length=10, description="conversations by share of tokens kept, in tenths from 0 on"
    )


class QualityResult(GateResult):
    """Comparison of one variant with the baseline on one suite."""

    kind: Literal["quality"] = "quality"
    baseline: float = Field(description="mean score, 0 to 1")
    candidate: float = Field(description="mean score, 0 to 1")
    estimate: float = Field(description="candidate minus baseline, paired by question")
    bound: float = Field(description="lower one-sided bound of `value`, at the look's alpha")
    prompt_format: str = Field(description="how it was asked: chat, base, letter or cloze")
    planned: int = Field(description="questions (or clusters) of the last planned look")
    look: int = Field(description="number of the look that decided, or of the last; from 1 on")
    looks: int = Field(description="number of planned looks")
    recovery: float | None = Field(description="candidate over baseline; None over zero")
    value: str = Field(
        description="what the bounds are of: 'candidate - baseline', or with a recovery margin "
        "'candidate - 0.99 baseline'"
    )
    upper_bound: float = Field(description="upper one-sided bound of that value")
    chance_baselines: list[ChanceBaseline] = Field(
        [], fail_fast=True, description="who knows nothing, and whether it shows"
    )
    cluster: str | None = Field(
        None, description="what belongs together; n, flips and gains then count such clusters"
    )
    method: str = Field(description="where the bounds come from")
    flips: int = Field(description="questions whose score changed")
    gains: int = Field(description="of these, how many the candidate did better")
    baseline_lengths: AnswerLengths | None = Field(
        None, description="None where answers are not generated"
    )
    candidate_lengths: AnswerLengths | None = None
    noise_floor: NoiseFloor | None = Field(description="None where the policy does not ask for it")
    nats: NatsLost | None = Field(
        None, description="where answers are log-probabilities of the baseline's tokens"
    )
    groups: list[GroupReport] = Field(
        fail_fast=True, description="by subject and group of subjects, where known"
    )

    @property
    def lengths(self) -> str:
        before, after = self.baseline_lengths, self.candidate_lengths
        if before is None or after is None:
            return ""
        words = [f"{before.tokens:,.0f} to {after.tokens:,.0f} tokens an answer"]
        for label, one, other in (
            ("cut off", before.truncated, after.truncated),
            ("thoughts without an end", before.unclosed, after.unclosed),
            ("not readable", before.unread, after.unread),
        ):
            if one or other:
                words.append(f"{label}: {format_percent(one, 1)} to {format_percent(other, 1)}")
        return "; ".join(words)

    @property
    def shares(self) -> str:
        counts = self.nats.shares if self.nats is not None else []
        listed = [f"{10 * n} to {10 * n + 10} %: {k}" for n, k in enumerate(counts) if k]
        return f"conversations by share kept: {', '.join(listed)}" if listed else ""


def explain_quality(gate: QualityResult, share: float | None) -> QualityResult:
    """Return the result with what the margin allows, and its verdict in plain words.

    Args:
        share: of the baseline that must be kept; None with a margin in points.
    """
    if share is None:
        points = f"{-100 * gate.threshold:g}"
        limit = f"{points} point{'s' * (points != '1')}"
        told: dict[str, Any] = {"allowed": gate.threshold}
    else:
        limit = gate.margin
        told = {"allowed": (share - 1) * gate.baseline, "kept": gate.recovery or 0.0}
    return gate.model_copy(update={**told, "words": _explain(gate, share, limit)})


def _explain(gate: QualityResult, share: float | None, limit: str) -> str:
    sides, keeps = _describe_scores(gate), share is not None
    if gate.suspicious:
        return f"{sides}; suspicious: better than the baseline by more than {limit}"
    if gate.verdict == "pass":
        return f"{sides}; {'it keeps' if keeps else 'the drop is below'} {limit}"
    if gate.verdict == "fail":
        return f"{sides}; {'it does not keep' if keeps else 'the drop is above'} {limit}"
    if gate.bound > gate.threshold:  # what was asked or answered shows nothing
        return f"{sides}; {gate.reason}"
    more = questions_missing(gate, share)
    if more is None:
        return f"{sides}; more questions would not show less than {limit}"
    goal = f"that it keeps {limit}" if keeps else f"a drop below {limit}"
    return f"{sides}; about {more:,} more questions are needed to show {goal}"


def _describe_scores(gate: QualityResult) -> str:
    right = [gate.baseline * gate.n, gate.candidate * gate.n]
    before, after = map(round, right)
    if gate.nats is not None:
        return (
            f"{format_percent(gate.candidate, 1)} of tokens kept, the baseline "
            f"{format_percent(gate.baseline, 1)}; {gate.nats.mean:.3f} +- {gate.nats.error:.3f} "
            "nats a token lost"
        )
    if any(abs(each - round(each)) > 1e-6 for each in right):
        return (
            f"{format_percent(gate.candidate, 1)}, the baseline {format_percent(gate.baseline, 1)}"
        )
    if before == after:
        return f"{after:,} of {gate.n:,} on both sides"
    return f"{after:,} of {gate.n:,}, the baseline {before:,}"


def questions_missing(gate: QualityResult, share: float | None = None) -> int | None:
    """Return how many more questions would pass the gate if the difference stays; None: none.

    The bound's distance falls with the square root of their number; without a changed answer, with
    their number.
    """
    value = gate.candidate - (1 if share is None else share) * gate.baseline
    gap, reach = value - gate.threshold, value - gate.bound
    if gap <= 0:
        return None
    more = gate.n * (reach / gap) ** (2 if gate.flips else 1) - gate.n
    if more > 1_000_000:  # no benchmark has as many
        return None
    digits: int = 10 ** max(0, math.floor(math.log10(max(more, 1))) - 1)
    return max(1, math.ceil(more / digits) * digits)
