"""How long a round lasts, and how many requests come in it.

A round that is short against its answers shows neither the latencies nor the queue of a server
that serves such traffic for hours. So a round lasts at least `ANSWERS` median answers: where the
rounds so far had longer answers than the workload's seconds allow, the next rounds last longer.
The length follows from earlier loads alone, never from the round itself.

Requests of a rate are a Poisson process, so their number differs from round to round. vLLM's load
generator sends a given number of requests and stretches the gaps until they fill the time. The
number is therefore drawn here, from the seed of the round.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from eval_gates.speed.invalid_reasons import median_answer, over_saturated
from eval_gates.speed.load_run import MAX_REQUESTS, LoadRun

ANSWERS = 10
"""Median answers that a round lasts at least."""
ANSWERS_OF_WARM_UP = 2
"""The same of the time before it, in which the server fills."""
SPARE = 1.25
"""How much longer later rounds are made than earlier answers need."""
LONGEST_S = 3_600.0
LOOKED_AT = 20
"""The latest loads, which the length of the next one follows from."""


@dataclass(frozen=True)
class Timing:
    """What of a round counts."""

    warmup_s: float
    measured_s: float

    @property
    def lasts(self) -> float:
        """Seconds that requests are sent for: the warm-up is sent once more after the end."""
        return self.measured_s + 2 * self.warmup_s


def next_timing(workload: Mapping[str, Any], loads: Sequence[LoadRun]) -> Timing | None:
    """The timing of the round after these loads; None at a fixed concurrency.

    An over-saturated round has answers as long as its queue, so it does not count here. A trace
    has times of its own, and a round that would be too long keeps the workload's seconds: where
    most rounds are then too short, the rule refuses them.

    Args:
        workload: as plain data (recipes/workload.py).
        loads: of whole rounds, in the order of measuring.
    """
    arrivals = workload["arrivals"]
    if arrivals["concurrency"]:
        return None
    declared = Timing(float(workload["warmup_seconds"]), float(workload["seconds"]))
    answers = [median_answer(load) for load in loads[-LOOKED_AT:] if not over_saturated(load)]
    known = [each for each in answers if each is not None]
    if arrivals["trace"] or not known:
        return declared
    wanted = SPARE * median(known)
    found = Timing(
        max(declared.warmup_s, math.ceil(ANSWERS_OF_WARM_UP * wanted)),
        max(declared.measured_s, math.ceil(ANSWERS * wanted)),
    )
    # A Poisson count is hardly ever a tenth above a mean of so many.
    fits = found.lasts <= LONGEST_S and 1.1 * found.lasts * arrivals["rate"] <= MAX_REQUESTS
    return found if fits else declared


def is_too_short(load: LoadRun) -> bool:
    """Whether a round lasted less than `ANSWERS` of its own median answers."""
    answer = median_answer(load)
    return load.measured_s is not None and answer is not None and load.measured_s < ANSWERS * answer


def count_arrivals(seed: int, rate: float, seconds: float) -> int:
    """How many requests of a Poisson process come, at least one.

    Args:
        seed: of the round.
        rate: requests/s.
        seconds: that requests are sent for.
    """
    chance = random.Random(f"arrivals {seed}")  # noqa: S311  # traffic, no secret
    number, now = 0, chance.expovariate(rate)
    while now < seconds and number < MAX_REQUESTS:
        number, now = number + 1, now + chance.expovariate(rate)
    return max(1, number)
