"""Scores of both sides by subject, or by member of a group of tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from eval_gates.quality_result import GroupReport

Rows = Iterable[Mapping[str, Any]]


def report_groups(
    baseline: Rows,
    candidate: Rows,
    group_of: Callable[[Mapping[str, Any]], str],
    order: Sequence[str] = (),
    *,
    is_subject: bool = True,
) -> list[GroupReport]:
    """Return both sides' mean scores and flips by group; a mean is over the group's questions.

    Args:
        baseline: rows; those of the candidate answer the same questions.
        order: of known groups; others follow by name.
    """
    pairs: dict[str, list[tuple[float, float]]] = {}
    for before, after in zip(baseline, candidate, strict=True):
        scores = float(before["score"]), float(after["score"])
        pairs.setdefault(group_of(before), []).append(scores)
    return [
        GroupReport(
            group=name,
            is_subject=is_subject,
            n=len(pairs[name]),
            baseline=sum(before for before, _ in pairs[name]) / len(pairs[name]),
            candidate=sum(after for _, after in pairs[name]) / len(pairs[name]),
            flips=sum(before != after for before, after in pairs[name]),
        )
        for name in [*order, *sorted(pairs.keys() - set(order))]
        if name in pairs
    ]
