"""Output tokens a second of the candidate over the baseline's, decided from paired blocks.

A block is both sides, one after the other in an order drawn by chance, with the same prompts. What
decides is y = ln(candidate / baseline) - ln(minimum) of each block; the claim is about the typical
block: half of all such blocks have a ratio of at least the minimum. A block exactly at the minimum
speaks for neither side. Nothing is assumed but that blocks are independent of each other.

Two lives of one server differ by more than two blocks of one life. Where both sides stay up, the
blocks say nothing of that: the ratio must then be above the minimum by an allowance, which a pair
of equal servers exceeds with probability `restart_allowance_alpha`; that part of the error rate is
not the blocks' to spend. Where lives alternate, a pair of lives is one value, the mean of its
blocks.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

from pydantic import Field, model_validator

from eval_gates.speed.drift import medians_of_halves
from eval_gates.speed.invalid_reasons import InvalidReason, distrusted, drifting, failures, unlike
from eval_gates.speed.load_run import LoadRun
from eval_gates.speed.proportion_test import surely_typical
from eval_gates.speed.sequential_rule import SequentialGateRule
from eval_gates.speed.steady_state import NoSteadyStateError, lag_gain, output_of, output_rate

if TYPE_CHECKING:
    from eval_gates.speed.proportion_test import FloatArray


class ThroughputRatioRule(SequentialGateRule):
    """What decides a ratio."""

    min_ratio: float = Field(gt=0, description="smallest acceptable ratio")
    blocks: int = Field(ge=1, description="at most; pairs of lives where these alternate")
    restart_allowance: float = Field(0.0, ge=0, description="of ln(ratio), for how lives differ")
    restart_allowance_alpha: float = Field(
        0.0, ge=0, lt=0.5, description="the share of alpha in it"
    )

    @property
    def unit(self) -> str:
        """What it counts."""
        return "blocks" if self.server_mode == "concurrent" else "pairs of lives"

    @model_validator(mode="after")
    def _something_is_left_to_the_blocks(self) -> ThroughputRatioRule:
        if self.restart_allowance_alpha >= self.alpha:
            raise ValueError("the allowance for lives takes all of alpha")
        return self

    @property
    def cap(self) -> int:
        """The most blocks."""
        return self.blocks

    @property
    def claimed(self) -> float:
        """Half of all blocks: the typical one."""
        return 0.5

    @property
    def level(self) -> float:
        """What the allowance leaves of alpha."""
        return self.alpha - self.restart_allowance_alpha

    def margins(self, loads: Sequence[LoadRun]) -> FloatArray:
        """y of each block.

        Raises:
            ValueError: a block has not one load of each side.
        """
        import numpy as np

        of_a_pair = self.loads_per_server_run if self.server_mode == "interleaved" else 1
        return np.array(log_ratios(paired(loads), of_a_pair)) - math.log(self.min_ratio)

    def sides(self, margins: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Beyond the allowance, above and below."""
        return margins - self.restart_allowance, -margins - self.restart_allowance

    def slack(self, loads: Sequence[LoadRun]) -> FloatArray:
        """For a pass the baseline could have been faster by its lag, for a fail the candidate."""
        import numpy as np

        gains = np.array([[lag_gain(load) for load in pair] for pair in paired(loads)])
        of_a_pair = self.loads_per_server_run if self.server_mode == "interleaved" else 1
        return np.asarray(gains.reshape(-1, of_a_pair, 2).mean(axis=1).T)

    def describe(
        self, margins: FloatArray, slack: FloatArray, continued: Sequence[int]
    ) -> tuple[FloatArray, float | None, float | None]:
        """The ratio of the typical block, as the median of those so far; its bounds."""
        import numpy as np

        logs = margins + math.log(self.min_ratio)
        first = int((~np.isnan(logs)).argmax())  # its value is the estimate before it
        medians = np.array([np.nanmedian(logs[: max(n, first) + 1]) for n in range(logs.size)])
        lower = surely_typical(logs - slack[0], self.level, continued) - self.restart_allowance
        upper = -surely_typical(-logs - slack[1], self.level, continued) + self.restart_allowance
        return np.exp(medians), _ratio(lower), _ratio(upper)

    def distrusted(self, loads: Sequence[LoadRun]) -> tuple[InvalidReason, ...]:
        """Each load, and each pair that was not asked the same."""
        return (
            *failures(loads),
            *distrusted(
                loads,
                declared=self.hit_rate,
                judged_s=None,
                must_count=self.must_count_hits,
                bounds_lag=True,
            ),
            *(cause for pair in paired(loads) for cause in unlike(*pair)),
        )

    def total_ratio(self, loads: Sequence[LoadRun]) -> float | None:
        """All output tokens over all time, the candidate's over the baseline's; None: none count.

        Of the steady parts of the blocks that count.
        """
        rates: list[float] = []
        for side in ("candidate", "baseline"):
            outputs = [output_of(load) for load in self.counting(loads) if load.side == side]
            if not outputs:
                return None
            tokens, seconds = (sum(each) for each in zip(*outputs, strict=True))
            rates.append(float(tokens / seconds))
        return rates[0] / rates[1]

    def log_rates(self, loads: Sequence[LoadRun]) -> dict[str, list[float]]:
        """The median ln(output tokens/s) of the loads that count of each start, by side."""
        of_starts: dict[tuple[str, int], list[float]] = {}
        for load in self.counting(loads):
            with contextlib.suppress(NoSteadyStateError):
                rate = math.log(output_rate(load))
                of_starts.setdefault((load.side, load.server_run), []).append(rate)
        found: dict[str, list[float]] = {}
        for (side, _), rates in of_starts.items():
            found.setdefault(side, []).append(median(rates))
        return found

    def withholds(self, loads: Sequence[LoadRun]) -> str | None:
        """A few blocks may lose so much that all tokens over all time are below the minimum."""
        total = self.total_ratio(loads)
        if total is None or total >= self.min_ratio:
            return None
        return "all output tokens over all time are below the minimum"

    def drift(self, loads: Sequence[LoadRun]) -> InvalidReason:
        """Of the side whose own rate changed most."""
        import numpy as np

        changes = []
        for of_side in zip(*paired(loads), strict=True):
            before, now = medians_of_halves(np.log([output_rate(load) for load in of_side]))
            changes.append((abs(now - before), math.exp(now - before), of_side[-1]))
        _, change, load = max(changes, key=lambda each: each[0])
        return drifting(load, f"its output tokens/s were {change:.3f} times as many")


def paired(loads: Sequence[LoadRun]) -> list[tuple[LoadRun, LoadRun]]:
    """Baseline and candidate of each block, in the order of measuring.

    Raises:
        ValueError: a block has not one load of each side.
    """
    blocks: dict[int, dict[str, LoadRun]] = {}
    for load in loads:
        sides = blocks.setdefault(load.block, {})
        if load.side in sides:
            raise ValueError(f"block {load.block} has two loads of the {load.side}")
        sides[load.side] = load
    for number, sides in blocks.items():
        if len(sides) != 2:
            raise ValueError(f"block {number} has the {next(iter(sides))} alone")
    return [(sides["baseline"], sides["candidate"]) for sides in blocks.values()]


def log_ratios(pairs: Sequence[tuple[LoadRun, LoadRun]], of_a_pair: int = 1) -> list[float]:
    """ln(candidate / baseline) of each block; of lives that alternate, the mean of each pair's.

    Args:
        pairs: both sides of each block.
        of_a_pair: blocks of each pair of lives.

    Raises:
        NoSteadyStateError: a load has no steady part.
    """
    logs = [
        math.log(output_rate(candidate) / output_rate(baseline)) for baseline, candidate in pairs
    ]
    return [
        sum(logs[start : start + of_a_pair]) / of_a_pair for start in range(0, len(logs), of_a_pair)
    ]


def allowance_for(spread: float, lives: int, alpha: float) -> float:
    """How far ln(ratio) of two lives of equal servers may be from 0: exceeded with chance alpha.

    sqrt(2) times the spread, times Student's quantile, which is 2 for many lives and alpha 2.5 %.

    Args:
        spread: standard deviation of ln(output tokens/s) between lives of one server.
        lives: how many it was estimated from, at least 2.
        alpha: one-sided.

    Raises:
        ValueError: there are fewer lives.
    """
    from scipy.special import stdtrit

    if lives < 2:
        raise ValueError(f"no spread is known from {lives} lives of a server")
    return math.sqrt(2) * spread * float(stdtrit(lives - 1, 1 - alpha))


def _ratio(log: float) -> float | None:
    return math.exp(log) if math.isfinite(log) else None
