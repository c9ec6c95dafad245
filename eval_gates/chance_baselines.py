"""Chance-level scores on a suite's questions, from the baseline's stored answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from eval_gates.clusters import group_by_cluster, means
from eval_gates.statistics.assay_sensitivity import (
    SensitivityCheck,
    check_sensitivity,
    swap_p_value,
)
from eval_gates.statistics.comparison import Comparison

Rows = Sequence[Mapping[str, Any]]
State = Literal["clear", "insensitive", "open"]

EMPTY, UNRELATED = "empty", "unrelated"
"""Keys of a row: the score of an empty answer to its question, and of its answer to another one."""
UNDECIDABLE = "undecidable"
"""Key of a row: no choice is shown to be the most likely one."""


def check_sensitivities(
    rows: Rows, guessing: float, comparison: Comparison, population: int | None
) -> list[SensitivityCheck]:
    """Check the margin against every chance baseline that these rows show.

    Args:
        rows: the baseline's answers, in the order of asking; at least one.
        guessing: expected score of a guess; 0 without choices.
    """
    # An undecidable answer is right where the sides are compared: here that would be knowledge.
    rows = [{**row, "score": 0.0} if row.get(UNDECIDABLE) else row for row in rows]
    clusters = group_by_cluster(rows)
    scores = means(clusters, "score")
    kind: Literal["guessing", "nothing"] = "guessing" if guessing > 0 else "nothing"
    # Chance can favour guesses on these very questions: what they score is no fact of a list.
    listed = population if guessing == 0 else None
    found = [check_sensitivity(kind, scores, guessing, comparison, listed)]
    if all(EMPTY in row for row in rows):
        empty = means(clusters, EMPTY)
        found.append(check_sensitivity("empty", scores, empty, comparison, population))
    if all(UNRELATED in row for row in rows):
        # An answer is scored against its partner's question, so the two are one draw.
        unrelated = means(clusters, UNRELATED)
        pairs = population // 2 if population is not None else None
        if len(scores) > 1:
            found.append(
                check_sensitivity("unrelated", _halve(scores), _halve(unrelated), comparison, pairs)
            )
        else:
            found.append(
                SensitivityCheck("unrelated", unrelated[0], p_insensitive=1.0, p_sensitive=1.0)
            )
    return found


def unrelated_p_value(rows: Rows) -> float:
    """Return the anytime-valid p-value of 'these answers fit any question'."""
    if not all(UNRELATED in row for row in rows):
        return 0.0
    clusters = group_by_cluster(rows)
    own, other = _halve(means(clusters, "score")), _halve(means(clusters, UNRELATED))
    return swap_p_value([a - b for a, b in zip(own, other, strict=True)])


def sensitivity_state(sensitivity_checks: Sequence[SensitivityCheck], alpha: float) -> State:
    """Return whether the gate is shown to be sensitive or insensitive at that level."""
    if all(sight.p_insensitive <= alpha for sight in sensitivity_checks):
        return "clear"
    refuted = any(check.p_sensitive <= alpha for check in sensitivity_checks)
    return "insensitive" if refuted else "open"


def _halve(values: Sequence[float]) -> list[float]:
    return [(a + b) / 2 for a, b in zip(values[::2], values[1::2], strict=False)]
