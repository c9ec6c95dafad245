"""Ratio of output tokens per second, candidate over baseline, decided from paired blocks.

A block measures both sides with the same prompts, one after the other in random order. It gives y =
ln(candidate / baseline) - ln(min_ratio). The gate requires that half of all such blocks have a
ratio above the minimum; equality counts for neither side. The only assumption is that blocks are
independent.

Server starts differ by more than the blocks of one start. If both sides stay up, the ratio must
therefore exceed the minimum by an allowance, which equal servers exceed with probability
`restart_allowance_alpha`. The blocks get the rest of the error rate. If server runs are
interleaved, one value is the mean over a pair of runs. If GPUs are swapped, it is the mean of a
block before and one after the swap, in which the GPUs' own speeds cancel out.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, model_validator

from eval_gates.speed.drift import LEVEL, half_medians, kendall_p_value
from eval_gates.speed.invalid_reasons import (
    InvalidReason,
    drift_reason,
    find_failed_requests,
    find_invalid_reasons,
    find_side_differences,
)
from eval_gates.speed.load_run import LoadRun
from eval_gates.speed.proportion_test import median_lower_bound
from eval_gates.speed.sequential_rule import SequentialGateRule
from eval_gates.speed.server_runs import ServerMode
from eval_gates.speed.steady_state import NoSteadyStateError, lag_gain, output_rate, steady_output

if TYPE_CHECKING:
    from eval_gates.speed.proportion_test import FloatArray


UNITS: Mapping[ServerMode, str] = {
    "concurrent": "blocks",
    "interleaved": "pairs of server runs",
    "swapped": "pairs of blocks",
}


class ThroughputRatioRule(SequentialGateRule):
    """Rule of a throughput ratio."""

    kind: Literal["ratio"] = "ratio"
    min_ratio: float = Field(gt=0, description="smallest acceptable ratio")
    blocks: int = Field(
        ge=1, description="maximum; pairs of server runs or of blocks in the other server modes"
    )
    restart_allowance: float = Field(
        0.0, ge=0, description="of ln(ratio), for differences of server runs"
    )
    restart_allowance_alpha: float = Field(0.0, ge=0, lt=0.5, description="its share of alpha")

    compares: ClassVar[bool] = True

    @property
    def unit(self) -> str:
        return UNITS[self.server_mode]

    @property
    def starts_per_side(self) -> int:
        """Starts whose mean is in each value."""
        return 2 if self.server_mode == "swapped" else 1

    @property
    def blocks_per_unit(self) -> int:
        """Blocks whose mean log ratio is one value."""
        return {"interleaved": self.loads_per_server_run, "swapped": 2}.get(self.server_mode, 1)

    @model_validator(mode="after")
    def _validate_alpha(self) -> ThroughputRatioRule:
        if self.restart_allowance_alpha >= self.alpha:
            raise ValueError("the allowance takes all of alpha")
        return self

    @property
    def cap(self) -> int:
        return self.blocks

    @property
    def required_share(self) -> float:
        return 0.5

    @property
    def level(self) -> float:
        return self.alpha - self.restart_allowance_alpha

    def margins(self, loads: Sequence[LoadRun]) -> FloatArray:
        import numpy as np

        logs = log_ratios(pair_sides(loads), self.blocks_per_unit)
        return np.array(logs) - math.log(self.min_ratio)

    def sides(self, margins: FloatArray) -> tuple[FloatArray, FloatArray]:
        return margins - self.restart_allowance, -margins - self.restart_allowance

    def slack(self, loads: Sequence[LoadRun]) -> FloatArray:
        """Return the baseline's lag gain against a pass, the candidate's against a fail."""
        import numpy as np

        gains = np.array([[lag_gain(load) for load in pair] for pair in pair_sides(loads)])
        return np.asarray(gains.reshape(-1, self.blocks_per_unit, 2).mean(axis=1).T)

    def describe(
        self, margins: FloatArray, slack: FloatArray, continued: Sequence[int]
    ) -> tuple[FloatArray, float | None, float | None]:
        import numpy as np

        logs = margins + math.log(self.min_ratio)
        first = int((~np.isnan(logs)).argmax())  # earlier estimates have its value
        medians = np.array([np.nanmedian(logs[: max(n, first) + 1]) for n in range(logs.size)])
        lower = median_lower_bound(logs - slack[0], self.level, continued) - self.restart_allowance
        upper = (
            -median_lower_bound(-logs - slack[1], self.level, continued) + self.restart_allowance
        )
        return np.exp(medians), _ratio(lower), _ratio(upper)

    def invalid_reasons(self, loads: Sequence[LoadRun]) -> tuple[InvalidReason, ...]:
        return (
            *find_failed_requests(loads),
            *find_invalid_reasons(
                loads,
                declared=self.hit_rate,
                judged_s=None,
                must_count=self.must_count_hits,
                bounds_lag=True,
            ),
            *(cause for pair in pair_sides(loads) for cause in find_side_differences(*pair)),
        )

    def total_ratio(self, loads: Sequence[LoadRun]) -> float | None:
        rates: list[float] = []
        for side in ("candidate", "baseline"):
            outputs = [
                steady_output(load) for load in self.counted_loads(loads) if load.side == side
            ]
            if not outputs:
                return None
            tokens, seconds = (sum(column) for column in zip(*outputs, strict=True))
            rates.append(float(tokens / seconds))
        return rates[0] / rates[1]

    def log_rates(self, loads: Sequence[LoadRun]) -> dict[str, list[float]]:
        start_rates: dict[tuple[str, int], list[float]] = {}
        for load in self.counted_loads(loads):
            with contextlib.suppress(NoSteadyStateError):
                rate = math.log(output_rate(load))
                start_rates.setdefault((load.side, load.server_run), []).append(rate)
        found: dict[str, list[float]] = {}
        for (side, _), rates in start_rates.items():
            found.setdefault(side, []).append(median(rates))
        return found

    def withhold_reason(self, loads: Sequence[LoadRun]) -> str | None:
        total = self.total_ratio(loads)
        if total is not None and total < self.min_ratio:
            return "all output tokens over all time are below the minimum"
        if self.server_mode == "swapped" and self._may_drift_decide(loads):
            return "one GPU became slower than the other, which may decide alone"
        return None

    def _may_drift_decide(self, loads: Sequence[LoadRun]) -> bool:
        """Return whether the margins end where the GPUs' drift is taken off them, twice.

        If the ratio of the GPUs' speeds changes from one half to the next, half of that stays in
        every value. The same drift within the halves moves the difference of a value's two blocks.
        """
        import numpy as np

        counted = self.counted_loads(loads)
        logs = np.array(log_ratios(pair_sides(counted))).reshape(-1, 2)
        margins = logs.mean(axis=1) - math.log(self.min_ratio) - self.restart_allowance
        swaps = np.array([load.block // (2 * self.loads_per_server_run) for load in counted[::4]])
        total = 0.0
        for swap in np.unique(swaps):
            differences = (logs[swaps == swap, 0] - logs[swaps == swap, 1]) / 2
            if differences.size > 1 and kendall_p_value(differences) <= LEVEL:
                before, now = half_medians(differences)
                total += differences.size * max(0.0, before - now)
        return total > 0 and bool(np.median(margins) <= 2 * total / margins.size)

    def drift(self, loads: Sequence[LoadRun]) -> InvalidReason:
        import numpy as np

        changes = []
        for side_loads in zip(*pair_sides(loads), strict=True):
            before, now = half_medians(np.log([output_rate(load) for load in side_loads]))
            changes.append((abs(now - before), math.exp(now - before), side_loads[-1]))
        _, change, load = max(changes, key=lambda item: item[0])
        return drift_reason(load, f"its output tokens/s were {change:.3f} times as high")


def pair_sides(loads: Sequence[LoadRun]) -> list[tuple[LoadRun, LoadRun]]:
    """Return each block's baseline and candidate, in order."""
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


def log_ratios(pairs: Sequence[tuple[LoadRun, LoadRun]], blocks_per_pair: int = 1) -> list[float]:
    """Return ln(candidate / baseline) of each block, or its mean per pair of server runs."""
    logs = [
        math.log(output_rate(candidate) / output_rate(baseline)) for baseline, candidate in pairs
    ]
    return [
        sum(logs[start : start + blocks_per_pair]) / blocks_per_pair
        for start in range(0, len(logs), blocks_per_pair)
    ]


def restart_allowance(spread: float, server_runs: int, alpha: float) -> float:
    """Return the bound of |ln(ratio)| of two runs of equal servers, exceeded with chance alpha.

    It is sqrt(2) times the spread, times Student's quantile.

    Args:
        spread: standard deviation of ln(output tokens/s) between runs of one server.
        server_runs: number of runs of the estimate; ValueError below 2.
        alpha: one-sided.
    """
    from scipy.special import stdtrit

    if server_runs < 2:
        raise ValueError(f"{server_runs} server runs are too few for a spread")
    return math.sqrt(2) * spread * float(stdtrit(server_runs - 1, 1 - alpha))


def _ratio(log: float) -> float | None:
    return math.exp(log) if math.isfinite(log) else None
