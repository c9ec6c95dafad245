"""Record of a gate's comparison of one variant with the baseline."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pipeline.core.record import Record

Verdict = Literal["pass", "fail", "undecided"]
Tier = Literal["critical", "supporting", "advisory"]


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


class GateReport(Record):
    """Comparison of one variant with the baseline on one suite."""

    suite: str = Field(description="name of the suite in the policy")
    metric: str = Field(description="what the mean is of, such as acc or rougeL")
    tier: Tier = Field(
        description="critical must pass, supporting must not fail, advisory never blocks"
    )
    prompt_format: str = Field(description="how it was asked: chat, base, letter or cloze")
    n: int = Field(description="questions (or clusters) that the deciding look used")
    planned: int = Field(description="questions (or clusters) of the last planned look")
    look: int = Field(description="number of the look that decided, or of the last; from 1 on")
    looks: int = Field(description="number of planned looks")
    baseline: float = Field(description="mean score of the baseline, 0 to 1")
    candidate: float = Field(description="mean score of the variant, 0 to 1")
    difference: float = Field(description="candidate minus baseline, paired by question")
    recovery: float | None = Field(description="candidate over baseline; None over zero")
    value: str = Field(
        description="what the bounds are of: 'candidate - baseline', or with a recovery margin "
        "'candidate - 0.99 baseline'"
    )
    bound: float = Field(
        description="lower one-sided bound of that value, at the look's share of alpha"
    )
    upper_bound: float = Field(description="upper one-sided bound of that value, likewise")
    threshold: float = Field(description="what the lower bound must lie above to pass")
    margin: str = Field(description="the policy's, in words")
    alpha: float = Field(description="error rate of the verdict, over all looks")
    p_value: float = Field(
        description="of 'inferior, or the gate is insensitive'; the smaller, the surer the pass"
    )
    chance_baselines: list[ChanceBaseline] = Field(
        [], fail_fast=True, description="who knows nothing, and whether it shows"
    )
    cluster: str | None = Field(
        None, description="what belongs together; n, flips and gains then count such clusters"
    )
    method: str = Field(description="where the bounds come from")
    interval: tuple[float, float] = Field(
        description="the same bounds of candidate - baseline; with a margin in points, equal"
    )
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
    verdict: Verdict
    reason: str = Field(description="the verdict in words")
    suspicious: bool = Field(False, description="better than the baseline by more than the margin")
