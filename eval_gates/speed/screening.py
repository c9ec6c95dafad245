"""Screening of candidate configurations: it selects one for a gate and gives no verdict.

The best of many equal candidates looks a few percent faster, so it needs a gate on other prompts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field

from eval_gates.speed.invalid_reasons import (
    InvalidReason,
    client_lag_reason,
    find_failed_requests,
    find_invalid_reasons,
)
from eval_gates.speed.load_run import LoadRun
from eval_gates.speed.server_runs import ServerRunRule
from eval_gates.speed.steady_state import lag_gain, output_rate


class ScreeningRule(ServerRunRule):
    """Stopping rule of one candidate configuration."""

    kind: Literal["screening"] = "screening"
    repetitions: int = Field(ge=1, description="of a candidate that is not out")
    leader: float | None = Field(
        None,
        gt=0,
        description="output tokens/s of the fastest so far; None for the first candidate",
    )
    prune_margin: float = Field(
        0.1,
        gt=0,
        lt=1,
        description="a candidate is out if all rounds are further behind the leader",
    )
    hit_rate: float | None = Field(None, description="declared by the workload")

    unit: ClassVar[str] = "rounds"
    compares: ClassVar[bool] = False

    @property
    def cap(self) -> int:
        return self.repetitions

    def state(self, loads: Sequence[LoadRun]) -> Literal["open", "measured", "pruned", "invalid"]:
        if self.invalid_reasons(loads):
            return "invalid"
        if not loads:
            return "open"
        if self.leader is not None:
            nearest = max(output_rate(load) for load in loads)
            if nearest < (1 - self.prune_margin) * self.leader:
                return "pruned"
        return "measured" if len(loads) >= self.repetitions else "open"

    def needs_more(self, loads: Sequence[LoadRun]) -> bool:
        return self.state(loads) == "open"

    def invalid_reasons(self, loads: Sequence[LoadRun]) -> list[InvalidReason]:
        found = find_invalid_reasons(loads, declared=self.hit_rate, judged_s=None, bounds_lag=True)
        most = -math.log1p(-self.prune_margin)
        late = [
            client_lag_reason(load)
            for load in loads
            if not any((reason.side, reason.block) == (load.side, load.block) for reason in found)
            and lag_gain(load) > most
        ]
        return [*find_failed_requests(loads), *found, *late]

    def typical_rate(self, loads: Sequence[LoadRun]) -> float:
        """Return the geometric mean of output tokens per second over the rounds."""
        return math.exp(sum(math.log(output_rate(load)) for load in loads) / len(loads))
