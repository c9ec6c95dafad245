"""Assay sensitivity: whether a gate's margin ends above the chance baselines.

A margin that reaches the score of guesses, or of empty or unrelated answers, would pass a model
that lost everything. So a lower bound of the baseline's score, less the margin, must exceed each,
as in three-arm non-inferiority trials.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from eval_gates.clusters import means
from eval_gates.rows import Answer
from eval_gates.statistics.bound import p_value
from eval_gates.statistics.comparison import Comparison

ChanceKind = Literal["nothing", "guessing", "empty", "unrelated"]
"""A score of 0; a guessed choice; an empty answer; the answer to another question."""


@dataclass(frozen=True)
class SensitivityCheck:
    """Baseline's evidence against one chance baseline."""

    kind: ChanceKind
    score: float
    """Mean score at chance level, in [0, 1]."""
    p_insensitive: float
    """p-value of 'the margin reaches down to it'; at most alpha: the gate is sensitive."""


def check_sensitivity(
    kind: ChanceKind,
    baseline: Sequence[float],
    chance_scores: float | Sequence[float],
    comparison: Comparison,
) -> SensitivityCheck:
    """Compare the baseline's score, less the margin, with the chance-level score.

    Scores are in [0, 1], in the drawn order; `chance_scores` may be one expected score.
    """
    import numpy as np

    scores = np.asarray(baseline, dtype=float)
    known = isinstance(chance_scores, (int, float))
    chance = np.broadcast_to(np.asarray(chance_scores, dtype=float), scores.shape)
    # If the margin reaches it, the mean of these is at most -threshold.
    heights = comparison.weight * scores - chance
    worst = -float(chance[0]) if known else -1.0
    p = p_value(heights, -comparison.threshold, lowest=worst)
    return SensitivityCheck(kind, float(chance.mean()), p)


def check_sensitivities(
    rows: Sequence[Answer], guessing: float, comparison: Comparison
) -> list[SensitivityCheck]:
    """Check the margin against every chance baseline that these rows show."""
    scores = means(rows, "score")
    kind: ChanceKind = "guessing" if guessing > 0 else "nothing"
    checks = [check_sensitivity(kind, scores, guessing, comparison)]
    if all(row.empty is not None for row in rows):
        checks.append(check_sensitivity("empty", scores, means(rows, "empty"), comparison))
    if all(row.unrelated is not None for row in rows):
        # An answer is scored against its partner's question, so both are one draw.
        unrelated = means(rows, "unrelated")
        if len(scores) > 1:
            pairs = _halve(scores), _halve(unrelated)
            checks.append(check_sensitivity("unrelated", *pairs, comparison))
        else:
            checks.append(SensitivityCheck("unrelated", unrelated[0], p_insensitive=1.0))
    return checks


def insensitive_checks(checks: Sequence[SensitivityCheck], alpha: float) -> list[SensitivityCheck]:
    """Return the checks that are not met at that level; with one, a gate cannot pass."""
    return [check for check in checks if not check.p_insensitive <= alpha]


def own_gains(rows: Sequence[Answer]) -> list[float] | None:
    """Return by pair of clusters how much better answers fit their own questions.

    None if answers are not scored on other questions.
    """
    if not all(row.unrelated is not None for row in rows):
        return None
    own = _halve(means(rows, "score"))
    other = _halve(means(rows, "unrelated"))
    return [a - b for a, b in zip(own, other, strict=True)]


def _halve(values: Sequence[float]) -> list[float]:
    """Return means of neighbors without an odd last one."""
    return [(a + b) / 2 for a, b in zip(values[::2], values[1::2], strict=False)]


def min_questions_for_sensitivity(
    comparison: Comparison, guessing: float, alpha: float
) -> int | None:
    """Return how many perfect answers show a score above guessing and margin.

    None if the margin always reaches guessing.
    """
    from math import floor, log

    # n values of weight - guessing, and one of -guessing with a weight of 1 - alpha ** (1 / n).
    room = comparison.weight - guessing + comparison.threshold
    if room <= 0:
        return None
    share = 1 - room / comparison.weight  # that n equal values must exceed
    return 1 if share <= 0 else floor(log(alpha) / log(share) + 1e-9) + 1
