"""How many questions the baseline is asked before each variant's turn, round by round.

Baseline and variants are served one after another, so a variant can be asked only what the
baseline has answered. A first round is sized to decide most gates; each further round doubles it.
How far a round goes has no influence on a verdict's error rate: a sequential test is valid
whenever one looks.
"""

from __future__ import annotations

import math

from eval_gates.statistics.betting import LARGEST_BET, NUMBER_OF_BETS, SMALLEST_BET
from eval_gates.statistics.comparison import Comparison

# Of the expected number: about what the mixture of bets costs, and a little luck.
SAFETY = 1.25
# Where neither the policy nor the source says how many questions there are.
UNKNOWN_MANY = 1 << 20
_STEP = (LARGEST_BET / SMALLEST_BET) ** (1 / (NUMBER_OF_BETS - 1))
_BETS = [SMALLEST_BET * _STEP**number for number in range(NUMBER_OF_BETS)]


def expected_questions(
    comparison: Comparison,
    alpha: float,
    flips: float,
    flip_size: float,
    planned: float | None = None,
) -> float:
    """About how many questions decide, when the variant is in truth no worse.

    By the growth rate of the best of the test's bets (Kelly), for differences that are plus or
    minus `flip_size` with probability `flips` / 2 each, and else zero. Infinite where every bet
    loses, as with a margin that is small beside the flips.

    Args:
        comparison: of a recovery it is taken at a baseline that scores 50 %.
        planned: the bet that has half of the stake; None: the stake is even.
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
    # A uniform mixture over a dozen bets costs the log of those that do about as well as the best.
    if planned is None:
        return needed(best, 4)
    return min(needed(growth(planned), 2), needed(best, 8))


def round_sizes(expected: float, batch: int, cap: int | None) -> list[int]:
    """Questions up to which each round goes: doubling, on a grid, the last one the cap.

    The grid (batch times 1, 2, 3, 4, 6, 8, 12...) lets other recipes and margins reuse a round.
    """
    cap = cap if cap is not None else UNKNOWN_MANY
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
    """1, 2, 3, 4, 6, 8, 12, 16..."""
    return [1, *(value for power in range(1, 21) for value in (2**power, 3 * 2 ** (power - 1)))]
