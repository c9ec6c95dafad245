"""Chance-level scores on a suite's questions, from stored answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from eval_gates.clusters import group_by_cluster, means
from eval_gates.statistics.assay_sensitivity import SensitivityCheck, check_sensitivity
from eval_gates.statistics.comparison import Comparison

Rows = Sequence[Mapping[str, Any]]

EMPTY, UNRELATED = "empty", "unrelated"
"""Keys of a row: the score of an empty answer to its question, and of its answer to another one."""


def check_sensitivities(
    rows: Rows, guessing: float, comparison: Comparison
) -> list[SensitivityCheck]:
    """Check the margin against every chance baseline that these rows show.

    Args:
        rows: all of the baseline's answers, in the order of asking; at least one.
        guessing: expected score of a guess; 0 without choices.
    """
    clusters = group_by_cluster(rows)
    scores = means(clusters, "score")
    kind: Literal["guessing", "nothing"] = "guessing" if guessing > 0 else "nothing"
    found = [check_sensitivity(kind, scores, guessing, comparison)]
    if all(EMPTY in row for row in rows):
        found.append(check_sensitivity("empty", scores, means(clusters, EMPTY), comparison))
    if all(UNRELATED in row for row in rows):
        # An answer is scored against its partner's question, so the two are one draw.
        unrelated = means(clusters, UNRELATED)
        if len(scores) > 1:
            pairs = halve(scores), halve(unrelated)
            found.append(check_sensitivity("unrelated", *pairs, comparison))
        else:
            found.append(SensitivityCheck("unrelated", unrelated[0], p_insensitive=1.0))
    return found


def own_gains(rows: Rows) -> list[float] | None:
    """Return, by pair of clusters, how much better answers fit their own questions; [n // 2].

    None where answers are not scored on other questions.
    """
    if not all(UNRELATED in row for row in rows):
        return None
    clusters = group_by_cluster(rows)
    own, other = halve(means(clusters, "score")), halve(means(clusters, UNRELATED))
    return [a - b for a, b in zip(own, other, strict=True)]


def halve(values: Sequence[float]) -> list[float]:
    """Return the means of pairs of neighbors; an odd last one is left out."""
    return [(a + b) / 2 for a, b in zip(values[::2], values[1::2], strict=False)]
