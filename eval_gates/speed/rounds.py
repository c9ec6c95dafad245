"""Length of a round, which is a load at a rate, and its arrivals.

A round lasts at least `MIN_ANSWERS` median answers; a shorter one does not show lasting traffic.
Its length depends on earlier loads alone, never on the round itself.

Arrivals at a rate are a Poisson process that the round's seed draws.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from eval_gates.speed.invalid_reasons import is_over_saturated, median_answer_s
from eval_gates.speed.load_run import MAX_REQUESTS, LoadRun

MIN_ANSWERS = 10
"""Smallest length of a round, in median answers."""
WARM_UP_ANSWERS = 2
"""Smallest length of the warm-up, in median answers."""
LENGTH_FACTOR = 1.25
"""Factor of later rounds' length over what earlier answers need."""
MAX_ROUND_S = 3_600.0
RECENT_LOADS = 20
"""Number of latest loads that determine the length of the next one."""


@dataclass(frozen=True)
class Timing:
    """Warm-up and measured time of a round."""

    warmup_s: float
    measured_s: float

    @property
    def total_s(self) -> float:
        return self.measured_s + 2 * self.warmup_s


def next_timing(workload: Mapping[str, Any], loads: Sequence[LoadRun]) -> Timing | None:
    """Return the timing of the round after these loads; None at a fixed concurrency.

    Over-saturated rounds are ignored, because their answers are as long as their queue.
    """
    if workload["arrivals"]["concurrency"]:
        return None
    answers = [
        median_answer_s(load) for load in loads[-RECENT_LOADS:] if not is_over_saturated(load)
    ]
    return timing_after(workload, [answer for answer in answers if answer is not None])


def timing_after(workload: Mapping[str, Any], known: Sequence[float]) -> Timing:
    """Return the timing of the round after answers of these median seconds.

    A round that would be too long gets the workload's seconds.
    """
    arrivals = workload["arrivals"]
    declared = Timing(float(workload["warmup_seconds"]), float(workload["seconds"]))
    if not known:
        return declared
    wanted = LENGTH_FACTOR * median(known)
    found = Timing(
        max(declared.warmup_s, math.ceil(WARM_UP_ANSWERS * wanted)),
        max(declared.measured_s, math.ceil(MIN_ANSWERS * wanted)),
    )
    # A Poisson count of that size is hardly ever a tenth above its mean.
    fits = found.total_s <= MAX_ROUND_S and 1.1 * found.total_s * arrivals["rate"] <= MAX_REQUESTS
    return found if fits else declared


def is_too_short(load: LoadRun) -> bool:
    """Return whether a round lasts less than `MIN_ANSWERS` of its median answers."""
    answer = median_answer_s(load)
    return (
        load.measured_s is not None
        and answer is not None
        and load.measured_s < MIN_ANSWERS * answer
    )


def arrival_times(seed: int, rate: float, seconds: float) -> list[float]:
    """Return the seconds of a Poisson process's arrivals before `seconds`, at least one."""
    chance = random.Random(f"arrivals {seed}")  # noqa: S311  # traffic, no secret
    times: list[float] = []
    now = chance.expovariate(rate)
    while now < seconds and len(times) < MAX_REQUESTS:
        times.append(now)
        now += chance.expovariate(rate)
    return times or [0.0]
