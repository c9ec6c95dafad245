"""Assay sensitivity: whether a gate's margin ends above the chance baselines.

Chance baselines are the scores of guesses, empty answers and answers to other questions. A margin
that reaches one would pass a model that lost everything. The gate therefore also tests that the
baseline's score, less the margin, exceeds each of them. With both tests at level alpha, a
chance-level candidate passes with probability at most alpha, because one null hypothesis is true.
It is the logic of three-arm non-inferiority trials, with chance as the placebo. All looks share one
bet (betting.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from eval_gates.statistics.betting import LARGEST_BET, NUMBER_OF_BETS, log_wealth
from eval_gates.statistics.comparison import Comparison

ChanceKind = Literal["nothing", "guessing", "empty", "unrelated"]
"""A score of 0; a guessed choice; an empty answer; the answer to another question."""

_MAX_QUESTIONS = 10**9


@dataclass(frozen=True)
class SensitivityCheck:
    """Evidence of the baseline's answers against one chance baseline."""

    kind: ChanceKind
    score: float
    """Mean score at chance level, in [0, 1]."""
    p_insensitive: float
    """Anytime-valid p-value of 'the margin reaches down to it'; at most alpha: the gate is
    sensitive.
    """
    p_sensitive: float
    """Anytime-valid p-value of the contrary; at most alpha: more questions cannot help."""


def check_sensitivity(
    kind: ChanceKind,
    baseline: Sequence[float],
    chance_scores: float | Sequence[float],
    comparison: Comparison,
    population: int | None,
) -> SensitivityCheck:
    """Bet that the baseline's score, less the margin, is above the chance-level score.

    Args:
        baseline: scores in [0, 1], in their random order; at least one.
        chance_scores: the expected score, or one for each baseline score.
    """
    import numpy as np

    scores = np.asarray(baseline, dtype=float)
    known = isinstance(chance_scores, (int, float))
    chance = np.broadcast_to(np.asarray(chance_scores, dtype=float), scores.shape)
    most = float(chance[0]) if known else 1.0
    # If the margin reaches down to it, weight x baseline + threshold - chance is at most 0.
    heights = np.maximum(comparison.weight * scores - chance + most, 0.0)
    mean, highest = most - comparison.threshold, comparison.weight + (0.0 if known else 1.0)
    return SensitivityCheck(
        kind,
        float(chance.mean()),
        _p_value(heights, mean, population),
        _p_value(np.maximum(highest - heights, 0.0), highest - mean, population),
    )


def swap_p_value(differences: Sequence[float]) -> float:
    """Compute the anytime-valid p-value of 'questions may swap answers and score the same'.

    Under the hypothesis, a difference of any size is positive as often as negative. The bet grows
    with the size of the difference, up to the mean size so far.
    """
    import numpy as np

    won = np.asarray(differences, dtype=float)
    usual = np.abs(won).cumsum() / np.arange(1, won.size + 1)
    shares = np.clip(np.divide(won, usual, out=np.zeros(won.size), where=usual > 0), -1, 1)
    return _p_value(1 + shares, 1.0, None) if won.size else 1.0


def min_questions_for_sensitivity(
    comparison: Comparison, guessing: float, alpha: float, population: int | None
) -> int | None:
    """Return how many perfect baseline answers show a score above guessing and margin.

    None if the margin reaches down to guessing at every baseline score.
    """
    import numpy as np

    mean = guessing - comparison.threshold
    if mean >= comparison.weight:
        return None
    if mean <= 0:
        return 1
    growth = math.log1p(LARGEST_BET * (comparison.weight / mean - 1))
    enough = math.ceil((math.log(NUMBER_OF_BETS) - math.log(alpha)) / growth)
    if min(enough, population or enough) > _MAX_QUESTIONS:
        return None
    shown = np.full(min(enough, population or enough), comparison.weight)
    crossed = log_wealth(shown, mean, population) >= -math.log(alpha)
    return int(crossed.argmax()) + 1 if crossed.any() else population


def _p_value(heights, mean: float, population: int | None) -> float:  # type: ignore[no-untyped-def]
    if mean <= 0:
        return float(not (heights > 0).any())
    return min(1.0, math.exp(-float(log_wealth(heights, mean, population).max())))
