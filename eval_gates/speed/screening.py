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
    find_failed_requests,
    find_invalid_reasons,
    find_late_client,
)
from eval_gates.speed.load_run import LoadRun
from eval_gates.speed.server_runs import ServerRunRule, Starts
from eval_gates.speed.steady_state import lag_gain, output_rate

MAX_LAG = 0.1  # of a load's time, that the client was late


class ScreeningRule(ServerRunRule):
    """Stopping rule of one candidate configuration."""

    kind: Literal["screening"] = "screening"
    starts: Starts = "once"
    repetitions: int = Field(ge=1, description="loads of a candidate")
    hit_rate: float | None = Field(None, description="declared by the workload")

    unit: ClassVar[str] = "loads"
    compares: ClassVar[bool] = False

    @property
    def cap(self) -> int:
        return self.repetitions

    def state(self, loads: Sequence[LoadRun]) -> Literal["open", "measured", "invalid"]:
        if self.invalid_reasons(loads):
            return "invalid"
        return "measured" if len(loads) >= self.repetitions else "open"

    def needs_more(self, loads: Sequence[LoadRun]) -> bool:
        return self.state(loads) == "open"

    def invalid_reasons(self, loads: Sequence[LoadRun]) -> list[InvalidReason]:
        def is_late(load: LoadRun) -> bool:
            return lag_gain(load) > -math.log1p(-MAX_LAG)

        return [
            *find_failed_requests(loads),
            *find_invalid_reasons(loads, declared=self.hit_rate),
            *(late for load in loads for late in find_late_client(load, is_late)),
        ]

    def typical_rate(self, loads: Sequence[LoadRun]) -> float:
        """Return the geometric mean of output tokens per second over the loads."""
        return math.exp(sum(math.log(output_rate(load)) for load in loads) / len(loads))
