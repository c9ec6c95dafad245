"""Spread of throughput between server starts on this machine, measured by the store.

A ratio measured on one start of each server must exceed its minimum by that spread. A profile can
only assume a number; each measured ratio shows starts of both sides.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import fmean

from pipeline.core.digest import digest_json
from pipeline.core.stage_record import StageRecord
from pipeline.stages import known_of
from pipeline.stages.attempts import StartSpread
from pipeline.stages.speed import SpeedParameters, SpeedResult
from recipes.schema import ServingProfile

FEWEST = 10
"""Starts from which a spread is taken; of fewer, Student's quantile makes too much of it."""
STEP = 0.005
"""What a spread is rounded up to. It is part of what a gate is decided by, and attempts should
rarely differ in it."""
COUNTS = (10, 20, 50, 100, 1_000)
"""What a number of starts is rounded down to, for the same reason."""


def spread_of_starts(records: Iterable[StageRecord], machine: str) -> StartSpread | None:
    """Return the standard deviation of ln(output tokens/s) between starts, and their number.

    Pooled over all servers with at least two starts under one workload. The number is the degrees
    of freedom and one more, as for starts of a single server.

    Args:
        records: of stages `speed`.
        machine: of the measurements; other machines do not count.

    Returns:
        None if fewer than `FEWEST` starts are known.
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
    known = max(count for count in COUNTS if count <= freedom + 1)
    return StartSpread(stddev=round(spread, 6), starts=known)


def takes_measured_spread(profile: ServingProfile) -> bool:
    """Return whether ratios under the profile allow for the measured spread."""
    holds = profile.server_mode in ("concurrent", "swapped")
    return holds and "restart_stddev" not in profile.model_fields_set


def with_measured_spread(profile: ServingProfile, found: StartSpread | None) -> ServingProfile:
    """Return the profile with the measured spread instead of an assumed one.

    Args:
        profile: as in its file.
        found: None if too few starts are known.
    """
    if found is None or not takes_measured_spread(profile):
        return profile
    return profile.model_copy(
        update={"restart_stddev": found.stddev, "restart_count": found.starts}
    )
