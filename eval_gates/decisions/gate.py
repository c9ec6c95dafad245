"""One-sided gates on single kinds of decisions: calls no more, refuses less, and so on.

A session's value is the share of its turns, of those that the gate is about, in which an arm
decides as the reference: the variant's less the baseline's. Which turns these are depends on the
reference alone, so both sides have the same ones, and an equal variant loses nothing on average.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Literal

from pydantic import Field

from eval_gates.clusters import group_by_cluster
from eval_gates.decisions.parts import is_about
from eval_gates.decisions.task import KindGate, gate_name, gates_of
from eval_gates.decisions.turn_decision import KINDS, READER_ERRORS, keeps
from eval_gates.gate_result import SCORE, GateResult, Verdict
from eval_gates.rows import Answer
from eval_gates.statistics.assay_sensitivity import check_sensitivity
from eval_gates.statistics.bound import mean_bounds, min_identical_values, p_value
from eval_gates.statistics.comparison import Comparison
from prepare.record import Record
from recipes.policy import AnySuite
from recipes.schema import Family

Answers = Sequence[Answer]


class Margins(Record):
    """By how many nats the reference's first token leads: a warning that decides nothing."""

    median: float
    lowest_tenth: float = Field(description="a tenth of the turns have less")


class DecisionResult(GateResult):
    """What one variant keeps of one kind of decision, or at one number of tools."""

    kind: Literal["decision"] = "decision"
    turns: int = Field(description="that the gate is about, in `n` sessions")
    kept_by_baseline: int = Field(description="in which the baseline's second start does the same")
    kept_turns: int = Field(description="in which the variant does the same")
    baseline_margins: Margins | None = Field(
        None, description="None where the server gives no log-probabilities"
    )
    candidate_margins: Margins | None = None

    @property
    def shares(self) -> str:
        """Return by how much the first token leads on both sides: a warning, before turns flip."""
        before = self.baseline_margins
        after = self.candidate_margins
        if before is None or after is None:
            return ""
        return (
            f"nats by which the baseline's first token leads: median {before.median:.2f} to "
            f"{after.median:.2f}, lowest tenth {before.lowest_tenth:.2f} to "
            f"{after.lowest_tenth:.2f}"
        )


def judge_decisions(
    name: str,
    suite: AnySuite,
    family: Family,
    alpha: float,
    baseline: Answers,
    candidate: Answers,
) -> list[DecisionResult]:
    """Return a result for each gate of the suite's own that has a margin for the family.

    ValueError if a side has not answered all that the other has.
    """
    gates = [(kind, gate) for kind, gate in gates_of(suite) if family in gate.margins]
    if gates and [row.id for row in baseline] != [row.id for row in candidate]:
        raise ValueError(f"{name}: both sides must have answered the same turns")
    return [
        _judge(name, kind, gate, gate.margins[family], alpha, baseline, candidate)
        for kind, gate in gates
    ]


@dataclass(frozen=True)
class _Turns:
    """A side's turns that a gate is about, and which of them keep the decision."""

    rows: Answers
    values: list[float]  # 0 or 1, by turn
    by_session: list[float]  # share of a session's turns

    @classmethod
    def of(cls, rows: Answers, kind: str, gate: KindGate) -> _Turns:
        about = [row for row in rows if is_about(row, kind, gate)]
        shares = [
            sum(_value(row, kind) for row in session) / len(session)
            for session in group_by_cluster(about)
        ]
        return cls(about, [_value(row, kind) for row in about], shares)

    @property
    def kept(self) -> int:
        return round(sum(self.values))


@dataclass(frozen=True)
class _Finding:
    """What the turns of both sides show."""

    verdict: Verdict
    why: str
    p_value: float = 1.0
    estimate: float | None = None
    lower: float | None = None
    upper: float | None = None


def _judge(
    suite: str,
    kind: str,
    gate: KindGate,
    margin: float,
    alpha: float,
    baseline: Answers,
    candidate: Answers,
) -> DecisionResult:
    before, after = (_Turns.of(rows, kind, gate) for rows in (baseline, candidate))
    if [row.id for row in before.rows] != [row.id for row in after.rows]:
        raise ValueError(f"{suite}: the sides were compared with different references")
    sessions = before.by_session
    # By kind, what an empty answer keeps is no loss: another gate sees it.
    empty = 0.0 if kind else _empty_by_session(before.rows)
    finding = _compare(before, after, margin, alpha, empty)
    why = finding.why
    least = min_identical_values(margin, alpha)
    if finding.verdict == "undecided" and len(sessions) < least:
        why += f"; {least} sessions with such a turn can pass, and there are {len(sessions)}"
    if kind in ("declines", "helps"):
        why += f"; {READER_ERRORS}"
    about = KINDS[kind] if kind else "turns in which the arm decides as the baseline"
    return DecisionResult(
        name=gate_name(suite, kind, gate),
        metric="kept",
        tier=gate.tier,
        n=len(sessions),
        counted=f"{len(before.rows):,} turns of {len(sessions):,} sessions",
        unit=SCORE,
        baseline=_mean(sessions),
        candidate=_mean(after.by_session),
        estimate=finding.estimate,
        lower=finding.lower,
        upper=finding.upper,
        bound=finding.lower,
        threshold=-margin,
        allowed=-margin,
        margin=f"{100 * margin:g} points",
        alpha=alpha,
        p_value=finding.p_value,
        verdict=finding.verdict,
        reason=f"{about}: {why} ({100 * (1 - alpha):g} % confidence)",
        turns=len(before.rows),
        kept_by_baseline=before.kept,
        kept_turns=after.kept,
        baseline_margins=_margins(before.rows),
        candidate_margins=_margins(after.rows),
    )


def _compare(
    before: _Turns, after: _Turns, margin: float, alpha: float, empty: float | list[float]
) -> _Finding:
    """Return the verdict on the shares by session.

    `empty` is what a model that answers nothing keeps, in all sessions or by session.
    """
    if not before.rows:
        return _Finding("undecided", "the baseline has no such turn, so nothing is compared")
    comparison = Comparison.points(margin)
    old = before.by_session
    differences = [own - theirs for own, theirs in zip(after.by_session, old, strict=True)]
    bounds = mean_bounds(differences, alpha)
    sensitivity = check_sensitivity("empty", old, empty, comparison)
    shown = f"{after.kept:,} of {len(after.rows):,}, the baseline itself {before.kept:,}"
    at_most = f"{max(0.0, -100 * bounds.lower):.1f} points"
    verdict: Verdict = "undecided"
    if bounds.upper < -margin:
        verdict = "fail"
        why = f"the loss is at least {-100 * bounds.upper:.1f} points"
    elif sensitivity.p_insensitive > alpha:
        why = (
            f"the loss may be as large as {-100 * bounds.lower:.1f} points; the gate is "
            "insensitive: a variant that keeps none of them could pass"
        )
    elif bounds.lower <= -margin:
        why = f"the loss may be as large as {at_most}"
    elif comparison.is_lost_by_question(before.values, after.values):
        why = (
            f"by session the loss is at most {at_most}, but of all turns, each counted once, as "
            "much as the margin is lost: long sessions lose more than short ones"
        )
    else:
        verdict = "pass"
        why = f"the loss is at most {at_most}"
    return _Finding(
        verdict,
        f"{shown}; {why}",
        p_value=max(p_value(differences, -margin, lowest=-1.0), sensitivity.p_insensitive),
        estimate=sum(differences) / len(differences),
        lower=bounds.lower,
        upper=bounds.upper,
    )


def _empty_by_session(rows: Answers) -> list[float]:
    return [
        sum(row.empty or 0.0 for row in session) / len(session)
        for session in group_by_cluster(rows)
    ]


def _value(row: Answer, kind: str) -> float:
    """Return what a turn counts; ValueError for a value that no suite writes."""
    value = row.own[keeps(kind)] if kind else row.score
    if isinstance(value, bool) or value not in (0, 1):
        raise ValueError(f"question {row.id} has the {kind or 'score'} {value!r:.50}")
    return float(value)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _margins(rows: Answers) -> Margins | None:
    margins = [row.own["margin"] for row in rows if isinstance(row.own.get("margin"), float)]
    if len(margins) < 2:
        return None
    return Margins(
        median=median(margins), lowest_tenth=quantiles(margins, n=10, method="inclusive")[0]
    )
