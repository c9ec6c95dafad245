"""One-sided gates on single kinds of decisions: calls no more, refuses less, and so on.

A session's value is the share of its turns, of those that the gate is about, in which an arm
decides as the reference: the variant's less the baseline's. Which turns these are depends on the
reference alone, so both sides have the same ones, and an equal variant loses nothing on average.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median, quantiles
from typing import Literal

from pydantic import Field

from eval_gates.clusters import group_by_cluster
from eval_gates.decisions import KINDS, READER_ERRORS, keeps
from eval_gates.gate_result import SCORE, GateResult, Verdict
from eval_gates.rows import Answer
from eval_gates.statistics.assay_sensitivity import check_sensitivity
from eval_gates.statistics.bound import mean_bounds, min_identical_values, p_value
from eval_gates.statistics.comparison import Comparison
from eval_gates.suites.decision_task import KindGate, gates_of
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


def gate_name(suite: str, kind: str, gate: KindGate) -> str:
    """Return a gate's name: of its kind, and of the number of tools."""
    at_tools = f"at {gate.tools} tools" if gate.tools is not None else ""
    return " ".join(filter(None, [suite, kind, at_tools]))


def _judge(
    suite: str,
    kind: str,
    gate: KindGate,
    margin: float,
    alpha: float,
    baseline: Answers,
    candidate: Answers,
) -> DecisionResult:
    sides = [
        [row for row in rows if row.group == gate.group and (not kind or keeps(kind) in row.own)]
        for rows in (baseline, candidate)
    ]
    if [row.id for row in sides[0]] != [row.id for row in sides[1]]:
        raise ValueError(f"{suite}: the sides were compared with different references")
    before, after = (_by_session(rows, kind) for rows in sides)
    differences = [changed - own for changed, own in zip(after, before, strict=True)]
    old, new = ([_value(row, kind) for row in rows] for rows in sides)
    kept = [round(sum(values)) for values in (old, new)]
    n = len(differences)
    about = KINDS[kind] if kind else "turns in which the arm decides as the baseline"
    least = min_identical_values(margin, alpha)
    verdict: Verdict = "undecided"
    p = 1.0
    lower = upper = estimate = None
    if not n:
        why = "the baseline has no such turn, so nothing is compared"
    else:
        bounds = mean_bounds(differences, alpha)
        lower = bounds.lower
        upper = bounds.upper
        estimate = sum(differences) / n
        sessions = group_by_cluster(sides[0])
        # By kind, what an empty answer keeps is no loss: another gate sees it.
        empty = 0.0 if kind else [sum(row.empty or 0.0 for row in s) / len(s) for s in sessions]
        comparison = Comparison.points(margin)
        sensitivity = check_sensitivity("empty", before, empty, comparison)
        p = max(p_value(differences, -margin, lowest=-1.0), sensitivity.p_insensitive)
        shown = f"{kept[1]:,} of {len(sides[1]):,}, the baseline itself {kept[0]:,}"
        why = f"{shown}; the loss may be as large as {-100 * lower:.1f} points"
        if upper < -margin:
            verdict = "fail"
            why = f"{shown}; the loss is at least {-100 * upper:.1f} points"
        elif sensitivity.p_insensitive > alpha:
            why += "; the gate is insensitive: a variant that keeps none of them could pass"
        elif lower > -margin and comparison.is_lost_by_question(old, new):
            why = (
                f"{shown}; by session the loss is at most {max(0.0, -100 * lower):.1f} points, but "
                "of all turns, each counted once, as much as the margin is lost: long sessions "
                "lose more than short ones"
            )
        elif lower > -margin:
            verdict = "pass"
            why = f"{shown}; the loss is at most {max(0.0, -100 * lower):.1f} points"
    if verdict == "undecided" and n < least:
        why += f"; {least} sessions with such a turn can pass, and there are {n}"
    if kind in ("declines", "helps"):
        why += f"; {READER_ERRORS}"
    return DecisionResult(
        name=gate_name(suite, kind, gate),
        metric="kept",
        tier=gate.tier,
        n=n,
        counted=f"{len(sides[0]):,} turns of {n:,} sessions",
        unit=SCORE,
        baseline=_mean(before),
        candidate=_mean(after),
        estimate=estimate,
        lower=lower,
        upper=upper,
        bound=lower,
        threshold=-margin,
        allowed=-margin,
        margin=f"{100 * margin:g} points",
        alpha=alpha,
        p_value=p,
        verdict=verdict,
        reason=f"{about}: {why} ({100 * (1 - alpha):g} % confidence)",
        turns=len(sides[0]),
        kept_by_baseline=kept[0],
        kept_turns=kept[1],
        baseline_margins=_margins(sides[0]),
        candidate_margins=_margins(sides[1]),
    )


def _by_session(rows: Answers, kind: str) -> list[float]:
    return [
        sum(_value(row, kind) for row in session) / len(session)
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
