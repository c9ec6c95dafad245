"""How much starts of servers differ on this machine, as the store has measured it.

Ratios that are measured on one start of each server have to be better by what that explains. A
profile can only assume a number; each measured ratio shows one, or more, starts of each side.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import fmean

from artifacts.stages import known_of
from artifacts.stages.speed import SpeedParameters, SpeedResult
from pipeline.core.digest import digest_json
from pipeline.core.stage_record import StageRecord
from recipes.schema import ServingProfile

FEWEST = 10
"""Starts from which a spread is taken; of fewer, Student's quantile makes too much of it."""
STEP = 0.005
"""What a spread is rounded up to. It is part of what a gate is decided by, so it should not change
with each run."""
COUNTS = (10, 20, 50, 100, 1_000)
"""What a number of starts is rounded down to, for the same reason."""


def spread_of_starts(records: Iterable[StageRecord], machine: str) -> tuple[float, int] | None:
    """Standard deviation of ln(output tokens/s) between starts of one server, and how many.

    Pooled over all servers that were started at least twice under one workload. The number is the
    degrees of freedom and one more, as of starts of a single server.

    Args:
        records: of stages `speed`.
        machine: that they were measured on; others say nothing of it.

    Returns:
        None where fewer than `FEWEST` starts are known.
    """
    starts: dict[str, list[float]] = {}
    for kept in known_of(records):
        asked, result = kept.parameters, kept.result
        if not isinstance(asked, SpeedParameters) or not isinstance(result, SpeedResult):
            continue
        if asked.machine != machine:
            continue
        for side, rates in result.log_rates.items():
            served = asked.sides[side].model_dump(mode="json")
            server = digest_json([asked.environment, asked.workload, served])
            starts.setdefault(server, []).extend(rates)
    squares, freedom = 0.0, 0
    for rates in starts.values():
        squares += sum((rate - fmean(rates)) ** 2 for rate in rates)
        freedom += len(rates) - 1
    if freedom + 1 < FEWEST:
        return None
    spread = STEP * max(1, math.ceil(math.sqrt(squares / freedom) / STEP))
    return round(spread, 6), max(count for count in COUNTS if count <= freedom + 1)


def with_measured_spread(
    profile: ServingProfile, records: Iterable[StageRecord], machine: str
) -> ServingProfile:
    """The profile with this machine's spread in the place of an assumed one, where it is known."""
    if profile.speed_lives != "together" or "life_spread" in profile.model_fields_set:
        return profile
    found = spread_of_starts(records, machine)
    if found is None:
        return profile
    return profile.model_copy(update={"life_spread": found[0], "life_count": found[1]})
