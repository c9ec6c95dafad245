"""Whether a gate can see: does its margin end above the score of who knows nothing?

A margin that reaches down to what guessing scores, or an empty answer, or an answer to another
question, would pass a model that lost everything. So beside 'the candidate is not inferior' a gate
has to show that the baseline's score, less the margin, lies above each of these. Both shown at
alpha, a candidate that knows nothing passes with probability at most alpha: either its drop is the
margin or more, or the second claim is wrong (the logic of three-arm non-inferiority trials, with
ignorance as the placebo).

It is one bet for all looks (betting.py): asking in rounds, or again with more questions, does not
add to its error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from eval_gates.statistics.betting import LARGEST_BET, NUMBER_OF_BETS, log_wealth
from eval_gates.statistics.comparison import Comparison

Ignorance = Literal["nothing", "guessing", "empty", "unrelated"]
"""A score of 0; a guessed choice; an empty answer; the answer to another question."""

_MOST_QUESTIONS = 10**9


@dataclass(frozen=True)
class SensitivityCheck:
    """What the baseline's answers show of one kind of ignorance."""

    kind: Ignorance
    score: float
    """Mean score of who knows nothing in this way, in [0, 1]."""
    p_blind: float
    """Anytime-valid p-value of 'the margin reaches down to it'; it sees on one of at most alpha."""
    p_clear: float
    """Anytime-valid p-value of the contrary; on one of at most alpha more questions cannot help."""


def sight_of(
    ignorance: Ignorance,
    baseline: Sequence[float],
    knows_nothing: float | Sequence[float],
    comparison: Comparison,
    population: int | None,
) -> SensitivityCheck:
    """Bet that the baseline's score less the margin is above that of who knows nothing.

    Args:
        baseline: scores in [0, 1], in the random order of asking; at least one.
        knows_nothing: the expected score, or one for each of the baseline's.
    """
    import numpy as np

    scores = np.asarray(baseline, dtype=float)
    known = isinstance(knows_nothing, (int, float))
    unknowing = np.broadcast_to(np.asarray(knows_nothing, dtype=float), scores.shape)
    most = float(unknowing[0]) if known else 1.0
    # weight x baseline + threshold - unknowing is at most 0 where the margin reaches down to it.
    heights = np.maximum(comparison.weight * scores - unknowing + most, 0.0)
    mean, highest = most - comparison.threshold, comparison.weight + (0.0 if known else 1.0)
    return SensitivityCheck(
        ignorance,
        float(unknowing.mean()),
        _p_value(heights, mean, population),
        _p_value(np.maximum(highest - heights, 0.0), highest - mean, population),
    )


def swap_p_value(differences: Sequence[float]) -> float:
    """Anytime-valid p-value of 'two questions may swap their answers, and score the same'.

    If answers have nothing to do with their questions, a difference is as likely to be positive as
    negative, whatever its size: a fair coin, on which a bettor stakes more where more is at stake,
    up to the mean size so far.
    """
    import numpy as np

    won = np.asarray(differences, dtype=float)
    usual = np.abs(won).cumsum() / np.arange(1, won.size + 1)
    shares = np.clip(np.divide(won, usual, out=np.zeros(won.size), where=usual > 0), -1, 1)
    return _p_value(1 + shares, 1.0, None) if won.size else 1.0


def least_to_see(
    comparison: Comparison, guessing: float, alpha: float, population: int | None
) -> int | None:
    """The questions that show a baseline without a single error to be above guessing and margin.

    None if none do: the margin reaches down to guessing whatever the baseline scores.
    """
    import numpy as np

    mean = guessing - comparison.threshold
    if mean >= comparison.weight:
        return None
    if mean <= 0:
        return 1
    growth = math.log1p(LARGEST_BET * (comparison.weight / mean - 1))
    enough = math.ceil((math.log(NUMBER_OF_BETS) - math.log(alpha)) / growth)
    if min(enough, population or enough) > _MOST_QUESTIONS:
        return None
    shown = np.full(min(enough, population or enough), comparison.weight)
    crossed = log_wealth(shown, mean, population) >= -math.log(alpha)
    return int(crossed.argmax()) + 1 if crossed.any() else population


def _p_value(heights, mean: float, population: int | None) -> float:  # type: ignore[no-untyped-def]
    """Of 'the mean height is at most `mean`'; with no room below it, one positive height is all."""
    if mean <= 0:
        return float(not (heights > 0).any())
    return min(1.0, math.exp(-float(log_wealth(heights, mean, population).max())))
