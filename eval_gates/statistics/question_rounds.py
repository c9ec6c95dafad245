"""Sizes of the rounds in which the baseline answers questions before each variant.

The first round is sized to decide most gates; each further round doubles it. Sizes do not affect
the error rate, because a sequential test is valid at every look.
"""

from __future__ import annotations

import math

from eval_gates.statistics.betting import LARGEST_BET, NUMBER_OF_BETS, SMALLEST_BET
from eval_gates.statistics.comparison import Comparison

# Factor on the expected number, for the cost of the set of bets and for bad luck.
SAFETY = 1.25
# Used if neither the policy nor the source gives the number of questions.
UNKNOWN_QUESTION_COUNT = 1 << 20
_STEP = (LARGEST_BET / SMALLEST_BET) ** (1 / (NUMBER_OF_BETS - 1))
_BETS = [SMALLEST_BET * _STEP**number for number in range(NUMBER_OF_BETS)]


def expected_questions(
    comparison: Comparison,
    alpha: float,
    flips: float,
    flip_size: float,
    planned: float | None = None,
) -> float:
    """Estimate how many questions decide if the variant is truly no worse.

    The estimate uses the growth rate of the test's best bet (Kelly). It assumes differences of plus
    or minus `flip_size` with probability `flips` / 2 each, otherwise zero, and a recovery's
    baseline score of 50 %. It is infinite if every bet loses.
    """
    points = comparison.allowed_drop(0.5)

    def growth(share: float) -> float:
        bet = share / (1 - points)
        return (
            flips / 2 * math.log1p(bet * (points + flip_size))
            + flips / 2 * math.log1p(bet * (points - flip_size))
            + (1 - flips) * math.log1p(bet * points)
        )

    def needed(growth: float, cost: float) -> float:
        return (math.log(1 / alpha) + math.log(cost)) / growth if growth > 0 else math.inf

    best = max(map(growth, _BETS))
    # An even stake costs the log of 12 over the number of bets about as good as the best.
    if planned is None:
        return needed(best, 4)
    return min(needed(growth(planned), 2), needed(best, 8))


def round_sizes(expected: float, batch: int, cap: int | None) -> list[int]:
    """Return the cumulative size of each round: doubling, on a grid, up to the cap."""
    cap = cap if cap is not None else UNKNOWN_QUESTION_COUNT
    size = batch
    for multiple in _grid():
        size = batch * multiple
        if size >= SAFETY * expected or size >= cap:
            break
    sizes = []
    while size < cap:
        sizes.append(size)
        size *= 2
    return [*sizes, cap]


def _grid() -> list[int]:
    return [1, *(value for power in range(1, 21) for value in (2**power, 3 * 2 ** (power - 1)))]
