"""Simulated runs of a sequential gate, for planning.

A run has a share of flips and a total loss. Each question has one of a few values, and a run is the
count of each value in each block. That is exact for blocks of one question; larger blocks only omit
looks inside a block.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eval_gates.statistics.betting import RELATIVE_TOLERANCE, mix, stake
from eval_gates.statistics.comparison import Comparison

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from eval_gates.statistics.comparison import FloatArray

    Counts = NDArray[np.int64]


@dataclass(frozen=True)
class PairedOutcomes:
    """Possible values of a question's comparison, and the chance of each."""

    values: tuple[float, ...]
    chances: tuple[float, ...]


@dataclass(frozen=True)
class SimulatedRuns:
    """Question at which each run crossed, each way; -1 if it did not: [runs]."""

    passed_at: Counts
    failed_at: Counts

    @property
    def passed(self) -> NDArray[np.bool_]:
        return (self.passed_at > 0) & ((self.failed_at < 0) | (self.passed_at < self.failed_at))

    @property
    def failed(self) -> NDArray[np.bool_]:
        return (self.failed_at > 0) & ~self.passed


def outcomes(
    comparison: Comparison, flips: float, flip_size: float, drop: float, baseline: float
) -> PairedOutcomes:
    """Return losses and gains of `flip_size` that differ by `drop` on average.

    If a drop needs more flips than `flips`, all flips are losses. For right-or-wrong answers,
    `baseline` limits the share of gains. With a `flip_size` under 1, a recovery gives every
    question the baseline's mean score.
    """
    _check_shares(comparison, flips, flip_size, drop, baseline)
    net = drop / flip_size
    gained = max(0.0, (flips - net) / 2)
    if comparison.kind == "points":
        return PairedOutcomes((-flip_size, flip_size, 0.0), _chances(gained + net, gained))
    share = comparison.size
    if flip_size == 1:
        gained = max(0.0, min(gained, 1 - baseline, baseline - net))
        lost = gained + net
        values = (-share, 1.0, 1 - share, 0.0)
        return PairedOutcomes(values, _chances(lost, gained, max(0.0, baseline - lost)))
    same = (1 - share) * baseline
    return PairedOutcomes(
        (same - flip_size, same + flip_size, same), _chances(gained + net, gained)
    )


def simulate_runs(
    outcome: PairedOutcomes,
    comparison: Comparison,
    *,
    alpha: float,
    questions: int,
    population: int | None,
    runs: int,
    blocks: int,
    seed: int,
    planned: float | None = None,
) -> SimulatedRuns:
    """Simulate the gate `runs` times, looking after each of about `blocks` blocks.

    With `population`, each run first draws a random benchmark of that size, then its order.
    """
    import numpy as np

    generator = np.random.default_rng(seed)
    step = math.ceil(questions / blocks)
    ends = np.append(np.arange(step, questions, step), questions)
    sizes = np.diff(ends, prepend=0)
    if population is None:
        counts = generator.multinomial(sizes, outcome.chances, size=(runs, sizes.size))
    else:
        counts = _draw_without_replacement(outcome, population, sizes, runs, generator)
    values = np.asarray(outcome.values)
    lowest, highest, threshold = comparison.lowest, comparison.highest, comparison.threshold
    ways = (
        (values - lowest, threshold - lowest, planned),
        (highest - values, highest - threshold, None),
    )
    crossings = []
    for heights, mean, bet in ways:
        log = _count_log_wealth(counts, sizes, heights, mean, population, bet)
        crossed = log >= -math.log(alpha)
        crossings.append(np.where(crossed.any(axis=1), ends[crossed.argmax(axis=1)], -1))
    return SimulatedRuns(*crossings)


def _count_log_wealth(
    counts: Counts,
    sizes: Counts,
    heights: FloatArray,
    mean: float,
    population: int | None,
    planned: float | None = None,
) -> FloatArray:
    """Compute betting.log_wealth at the end of each block from counts: [runs, blocks].

    Without replacement, the mean left for the unseen values is taken at the block's middle.
    """
    import numpy as np

    shares = stake(planned)
    if population is None:
        table = np.log1p(shares * (heights[:, None] / mean - 1))  # [values, bets]
        return mix(np.asarray(np.cumsum(counts, axis=1) @ table, dtype=float), planned)

    tolerance = RELATIVE_TOLERANCE * population
    left_after = population * mean - np.cumsum(counts @ heights, axis=1)
    left_before = np.concatenate(
        (np.full((counts.shape[0], 1), population * mean), left_after[:, :-1]), axis=1
    )
    middle = (sizes - 1) / (2 * sizes)
    left = left_before + middle * (left_after - left_before)
    unseen = population - (np.cumsum(sizes) - sizes) - middle * sizes
    betting = left > tolerance
    per_height = np.where(betting, unseen / np.where(betting, left, 1.0), 0.0)
    ratio = np.where(betting[..., None], per_height[..., None] * heights, 1.0)
    gains = np.log1p(shares * (ratio[..., None] - 1))  # [runs, blocks, values, bets]
    earned = np.asarray(np.cumsum(np.einsum("rbv,rbvk->rbk", counts, gains), axis=1), dtype=float)
    return np.where(left_after < -tolerance, np.inf, mix(earned, planned))


def _draw_without_replacement(
    outcome: PairedOutcomes,
    population: int,
    sizes: Counts,
    runs: int,
    generator: np.random.Generator,
) -> Counts:
    import numpy as np

    left = generator.multinomial(population, outcome.chances, size=runs)
    drawn = np.empty((runs, sizes.size, left.shape[1]), dtype=np.int64)
    for block, size in enumerate(sizes):
        wanted = np.full(runs, size)
        for value in range(left.shape[1] - 1):
            others = left[:, value + 1 :].sum(axis=1)
            taken = generator.hypergeometric(left[:, value], others, wanted)
            drawn[:, block, value] = taken
            wanted -= taken
        drawn[:, block, -1] = wanted
        left -= drawn[:, block]
    return drawn


def _chances(*first: float) -> tuple[float, ...]:
    return (*first, max(0.0, 1 - sum(first)))


def _check_shares(
    comparison: Comparison, flips: float, flip_size: float, drop: float, baseline: float
) -> None:
    if not 0 <= flips <= 1:
        raise ValueError(f"flips, a share of the questions, must be in [0, 1], not {flips}")
    if not 0 < flip_size <= 1:
        raise ValueError(f"flip_size, a change in score, must be in (0, 1], not {flip_size}")
    if not 0 <= baseline <= 1:
        raise ValueError(f"the baseline's mean score must be in [0, 1], not {baseline}")
    if comparison.kind == "recovery" and flip_size < 1:
        if not flip_size <= baseline <= 1 - flip_size:
            raise ValueError(
                f"a score of {baseline} cannot move by {flip_size} both ways in [0, 1]"
            )
        most = flip_size
    else:
        most = flip_size if comparison.kind == "points" else baseline
    if not 0 <= drop <= most:
        raise ValueError(f"the true drop must be between 0 and {most}, not {drop}")
