"""Result of one suite's gate."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from pydantic import Field

from eval_gates.depth import DepthReport
from eval_gates.gate_result import GateResult, format_percent
from eval_gates.statistics.parts import Part
from prepare.record import Record

KEPT_SHARE = "kept_share"
"""Metric of conversations: the share of the baseline's tokens that an arm would write, too."""

SAME_DECISION = "same_decision"
"""Metric of agents' turns: the share that decides as the baseline's first start."""


GroupKind = Literal["part", "tool", "field", "union", "rung"]
MAX_LISTED = 5
"""Parts that a summary lists, those with the largest loss first."""


class NoiseFloor(Record):
    """Changes by serving alone, from a repeated side: greedy is not bit-stable."""

    n: int = Field(description="questions that the side was asked twice")
    flips: int = Field(description="of these, how many scores differed")
    side: Literal["baseline", "candidate"] = Field(
        "baseline",
        description="that was asked twice; the candidate, by two starts of its server, where the "
        "baseline is on record",
    )


class GroupReport(Record):
    """Scores of one subject, or group of subjects, of a suite."""

    group: str
    kind: GroupKind = Field(
        description="part: a subject, a task of several, or an ability. tool: the turns in which "
        "the reference calls it, named by its name's digest. field: the questions with one value "
        "of the field that the policy's `parts_by` names. union: subjects together. rung: a "
        "number of tools"
    )
    n: int = Field(description="questions")
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
    bound: float = Field(
        description="lower one-sided bound, at the look's alpha, of candidate - baseline; with a "
        "recovery margin r of candidate - r baseline"
    )
    prompt_format: str = Field(description="how it was asked: chat, base, letter or cloze")
    planned: int = Field(description="questions (or clusters) of the last planned look")
    look: int = Field(description="number of the look that decided, or of the last; from 1 on")
    upper_bound: float = Field(description="upper one-sided bound of that value")
    cluster: str | None = Field(
        None, description="what belongs together; n, flips and gains then count such clusters"
    )
    parts_by: str | None = Field(
        None, description="field of the questions whose values are parts that must not be lost"
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
    depths: list[DepthReport] = Field(
        [], max_length=10, description="by the tokens that the answers follow, where known"
    )
    lost: list[str] = Field(
        [], description="groups that are shown to lose the margin, once all were asked"
    )
    doubtful: list[str] = Field(
        [],
        description="of a pass, parts that are shown to lose the margin if each is looked at "
        "alone. It decides nothing: of many parts that lose it, some are so by chance",
    )
    groups: list[GroupReport] = Field(
        fail_fast=True, description="by subject and group of subjects, where known"
    )

    @property
    def shown_metric(self) -> str:
        return "" if self.metric == KEPT_SHARE else self.metric

    @property
    def shortfall(self) -> str:
        if self.lost:
            return f"{super().shortfall}{self.shown_losses}"
        if self.metric != KEPT_SHARE or self.allowed is None:
            return super().shortfall
        kept = format_percent(self.candidate, 1)
        lost = f"{-100 * self.estimate:.1f} points fewer"
        limit = f"at most {-100 * self.allowed:.4g} may be lost"
        return f"{self.name} (keeps {kept} of the baseline's next tokens, {lost}; {limit})"

    @property
    def shown_losses(self) -> str:
        listed = self.lost[:MAX_LISTED]
        if len(self.lost) > MAX_LISTED:
            listed.append(f"{len(self.lost) - MAX_LISTED} more")
        return f" (lost: {', '.join(listed)})" if listed else ""

    @property
    def lengths(self) -> str:
        before = self.baseline_lengths
        after = self.candidate_lengths
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
    def floor(self) -> str:
        floor = self.noise_floor
        if floor is None:
            return ""
        who = "the baseline asked twice"
        if floor.side == "candidate":
            who = "two starts of this engine"
        return f"{who} changed {floor.flips} of {floor.n} scores"

    @property
    def shares(self) -> str:
        if self.metric == SAME_DECISION:
            return ". ".join(filter(None, [self._by_ability, self._by_tool]))
        counts = self.nats.shares if self.nats is not None else []
        listed = [f"{10 * n} to {10 * n + 10} %: {k}" for n, k in enumerate(counts) if k]
        return f"conversations by share kept: {', '.join(listed)}" if listed else ""

    @property
    def _by_ability(self) -> str:
        parts = [_change_of(row, "turns") for row in self.groups if row.kind == "part"]
        return f"by what the baseline does at the turn: {'; '.join(parts)}" if parts else ""

    @property
    def _by_tool(self) -> str:
        listed = self._worst_of("tool", "turns")
        return f"called as by the baseline: {listed}" if listed else ""

    @property
    def by_part(self) -> str:
        listed = self._worst_of("field", "questions")
        return f"by {self.parts_by}: {listed}" if listed else ""

    def _worst_of(self, kind: GroupKind, unit: str) -> str:
        """Return the parts of that kind with the largest loss."""
        parts = [row for row in self.groups if row.kind == kind]
        parts.sort(key=lambda row: row.candidate - row.baseline)
        listed = [_change_of(row, unit) for row in parts[:MAX_LISTED]]
        if len(parts) > MAX_LISTED:
            listed.append(f"{len(parts) - MAX_LISTED} others lose no more")
        return "; ".join(listed)

    @property
    def doubts(self) -> list[str]:
        named = [f"{self.name}, {part}" for part in self.doubtful[:MAX_LISTED]]
        if len(self.doubtful) > MAX_LISTED:
            named.append(f"{len(self.doubtful) - MAX_LISTED} more parts of {self.name}")
        return named

    @property
    def by_depth(self) -> str:
        rows = [
            f"{row.words} {format_percent(row.baseline, 1)} to {format_percent(row.candidate, 1)} "
            f"({row.n:,})"
            for row in self.depths
        ]
        return f"by tokens before the answer: {'; '.join(rows)}" if rows else ""


def _change_of(row: GroupReport, unit: str) -> str:
    before = format_percent(row.baseline, 1)
    after = format_percent(row.candidate, 1)
    return f"{row.group} {before} to {after} ({row.n:,} {unit})"


def report_parts(
    parts: Iterable[Part], kind: GroupKind, order: Sequence[str] = ()
) -> list[GroupReport]:
    """Return each part's mean scores and flips.

    `order` has the known names; others follow by name.
    """
    by_name = {part.name: part for part in parts}
    names = [name for name in order if name in by_name]
    names += sorted(by_name.keys() - set(order))
    return [_report(by_name[name], kind) for name in names]


def _report(part: Part, kind: GroupKind) -> GroupReport:
    before = [row.score for row in part.before]
    after = [row.score for row in part.after]
    return GroupReport(
        group=part.name,
        kind=kind,
        n=len(before),
        baseline=sum(before) / len(before),
        candidate=sum(after) / len(after),
        flips=sum(old != new for old, new in zip(before, after, strict=True)),
    )
