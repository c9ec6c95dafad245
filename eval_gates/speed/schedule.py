"""Order, prompts and arrivals of loads, drawn from one recorded seed."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any, Literal, NamedTuple

from eval_gates.speed.load_run import MAX_REQUESTS, LoadRun

Starts = Literal["fresh", "once"]
"""fresh: each load has a separate server start; once: all servers stay up."""
MIN_ANSWERS = 10
WARM_UP_ANSWERS = 2
"""Smallest length of a load at a rate, and of its warm-up, in median answers."""
LONGER = 1.5  # answers take longer under the whole load than under a short one
MAX_LOAD_S = 3_600.0


class Timing(NamedTuple):
    """Seconds of a load at a rate; the warm-up is sent again at the end."""

    warmup_s: float
    measured_s: float

    @property
    def total_s(self) -> float:
        return self.measured_s + 2 * self.warmup_s


def draw_block(seed: int, block: int, start: int, arms: Iterable[str]) -> tuple[list[str], int]:
    """Return a block's arms in order, and its loads' seed.

    `start` counts how often the block was begun before. Orders are
    balanced, so that a slower place weighs on all arms: each arm has each place once in as many
    blocks as there are arms, and then once more in the opposite order. Absent arms keep the
    others' order.
    """
    chance = random.Random(f"{seed} {block} {start}")  # noqa: S311  # traffic, no secret
    traffic = chance.getrandbits(32)
    order = sorted(arms)
    cycle, turn = divmod(block, len(order))
    random.Random(f"order {seed} {cycle // 2}").shuffle(order)  # noqa: S311
    if cycle % 2:
        order.reverse()
    return order[turn:] + order[:turn], traffic


def load_seed(traffic: int, also: str) -> int:
    """Return the seed of a further load of a block; prompts must not be in the cache."""
    return random.Random(f"{traffic} {also}").getrandbits(32) if also else traffic  # noqa: S311


def look_seed(traffic: int) -> int:
    """Return the seed of the short load before `traffic`."""
    return traffic ^ 1


def redraw(
    seed: int,
    loads: Sequence[LoadRun],
    arms: Sequence[str],
    sides: Mapping[str, str],
    also: str = "",
) -> Iterator[tuple[str, int, int, int]]:
    """Yield side, block, place and seed of each load, if blocks are complete.

    `also` is the workload if it is not the blocks' first.
    """
    for first in loads[:: len(sides)]:
        order, traffic = draw_block(seed, first.block, first.server_run, arms)
        traffic = load_seed(traffic, also)
        mine = [sides[arm] for arm in order if arm in sides]
        yield from ((side, first.block, place, traffic) for place, side in enumerate(mine))


def are_whole_blocks(loads: Sequence[LoadRun], unit: int) -> bool:
    """Return whether blocks of `unit` loads are whole and in order; one may be missing."""
    blocks = [loads[at : at + unit] for at in range(0, len(loads), unit)]
    numbers = [block[0].block for block in blocks]
    begun = [{(load.block, load.server_run) for load in block} for block in blocks]
    return all(len(counts) == 1 for counts in begun) and numbers == sorted(set(numbers))


def timing_after(workload: Mapping[str, Any], answers: Sequence[float]) -> Timing:
    """Return the timing of loads, at most the workload's seconds."""
    declared = Timing(float(workload["warmup_seconds"]), float(workload["seconds"]))
    if not answers:
        return declared
    answer = LONGER * median(answers)
    timing = Timing(
        max(declared.warmup_s, math.ceil(WARM_UP_ANSWERS * answer)),
        max(declared.measured_s, math.ceil(MIN_ANSWERS * answer)),
    )
    # A Poisson count of that size rarely exceeds its mean by a tenth.
    requests = 1.1 * timing.total_s * workload["arrivals"]["rate"]
    return timing if timing.total_s <= MAX_LOAD_S and requests <= MAX_REQUESTS else declared


def arrival_times(seed: int, rate: float, seconds: float) -> list[float]:
    """Return at least one Poisson arrival before `seconds`."""
    chance = random.Random(f"arrivals {seed}")  # noqa: S311  # traffic, no secret
    times: list[float] = []
    now = chance.expovariate(rate)
    while now < seconds and len(times) < MAX_REQUESTS:
        times.append(now)
        now += chance.expovariate(rate)
    return times or [0.0]
