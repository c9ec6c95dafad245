"""How far one entrant of a race is measured. A race chooses what to confirm; it shows nothing.

The best of many equal entrants looks a few percent faster than they are. So nothing is concluded
from these numbers but which entrant is worth a claim of its own, on other prompts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field

from eval_gates.speed.invalid_reasons import InvalidReason, distrusted, failures, lagging
from eval_gates.speed.load_run import LoadRun
from eval_gates.speed.server_runs import ServerRunRule
from eval_gates.speed.steady_state import lag_gain, output_rate


class ScreeningRule(ServerRunRule):
    """When an entrant is measured no further."""

    repetitions: int = Field(ge=1, description="of one that keeps up")
    leader: float | None = Field(
        None, gt=0, description="output tokens a second of the fastest before; None: it is first"
    )
    prune_margin: float = Field(
        0.1, gt=0, lt=1, description="with no round nearer to the leader than this, it is out"
    )
    hit_rate: float | None = Field(None, description="that the workload declares")

    unit: ClassVar[str] = "rounds"

    @property
    def cap(self) -> int:
        """The most rounds."""
        return self.repetitions

    def state(self, loads: Sequence[LoadRun]) -> Literal["open", "raced", "out", "invalid"]:
        """Where the entrant stands after these loads."""
        if self.causes(loads):
            return "invalid"
        if not loads:
            return "open"
        if self.leader is not None:
            nearest = max(output_rate(load) for load in loads)
            if nearest < (1 - self.prune_margin) * self.leader:
                return "out"
        return "raced" if len(loads) >= self.repetitions else "open"

    def wants_more(self, loads: Sequence[LoadRun]) -> bool:
        """Whether it is still in the race, with rounds to go."""
        return self.state(loads) == "open"

    def causes(self, loads: Sequence[LoadRun]) -> list[InvalidReason]:
        """Why its numbers are none."""
        found = distrusted(loads, declared=self.hit_rate, judged_s=None, bounds_lag=True)
        most = -math.log1p(-self.prune_margin)
        late = [
            lagging(load)
            for load in loads
            if not any((each.side, each.block) == (load.side, load.block) for each in found)
            and lag_gain(load) > most
        ]
        return [*failures(loads), *found, *late]

    def typical_rate(self, loads: Sequence[LoadRun]) -> float:
        """Output tokens a second: the geometric mean over the rounds, of which there is one."""
        return math.exp(sum(math.log(output_rate(load)) for load in loads) / len(loads))
