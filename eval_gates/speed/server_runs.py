"""Schedule of a measurement's loads over server starts.

Fresh: each load has its own server start. A block has a start of every arm, one after another in
drawn order, and all loads have the same prompts. A killed block is drawn again.

Once: the servers of all sides are up, and measure block after block in drawn order. After a kill or
crash, another start continues after the last complete block with new prompts.

Randomization follows from one seed, plus the number and the start of the block, or the number of
the start and all earlier loads.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from pydantic import Field

from eval_gates.speed.load_run import LoadRun, NumericRecord, fits_evidence
from eval_gates.speed.randomization import Randomization
from pipeline.core.digest import digest_json

Starts = Literal["fresh", "once"]
OF_THESE_STARTS = "of these starts"
"""What a verdict of servers that stay up is about."""
DrawnLoad = tuple[str, int, int, int]
"""Randomization of one load: side, block, place, seed."""


class ServerRunRule(NumericRecord):
    """Rule of a measurement's server starts."""

    starts: Starts = Field(
        "fresh", description="fresh: a start of the server for each load; once: servers stay up"
    )

    def schedule(self, sides: Sequence[str]) -> ServerRunSchedule:
        return ServerRunSchedule(tuple(sides))

    def fits_evidence(self, loads: Sequence[LoadRun]) -> bool:
        sides = {load.side for load in loads}
        return not sides or fits_evidence(loads, len(sides))


@dataclass(frozen=True)
class ServerRun:
    """The part of a measurement for one server start."""

    number: int  # among all that were started, from 0
    sides: tuple[str, ...]  # whose servers run
    block: int  # number of its first block
    draw: int  # randomization seed


def digest_loads(loads: Iterable[LoadRun], before: str = "") -> str:
    """Return the digest of loads in order, after the digest `before`."""
    found = before
    for load in loads:
        timings = [load.requests.start_s, load.requests.ttft_s, load.requests.end_s]
        found = digest_json(
            [found, load.server_run, load.side, load.seed, load.prompts_sha256, timings]
        )
    return found


def server_run_seed(seed: int, number: int, before: str) -> int:
    """Return a server start's seed; `before` is the digest of earlier loads."""
    return int(digest_json([seed, number, before])[:16], 16) if number else seed


def draw_block(seed: int, block: int, start: int, arms: Iterable[str]) -> tuple[list[str], int]:
    """Return a block's arms in order, and its loads' seed.

    Args:
        seed: of the measurement.
        block: its number.
        start: how often the block was begun before.
        arms: all that the measurement has; those that do not take part leave the others' order.
    """
    chance = random.Random(f"{seed} {block} {start}")  # noqa: S311  # traffic, no secret
    traffic, order = chance.getrandbits(32), sorted(arms)
    chance.shuffle(order)
    return order, traffic


def draw_fresh(
    seed: int, loads: Sequence[LoadRun], arms: Iterable[str], sides: Mapping[str, str]
) -> Iterator[DrawnLoad]:
    """Yield the randomization of each load of fresh starts, if these are all of two sides.

    Args:
        arms: as for `draw_block`.
        sides: by arm that is compared, its side.
    """
    arms, unit = list(arms), len(sides)
    for first in loads[::unit]:
        order, traffic = draw_block(seed, first.block, first.server_run, arms)
        mine = [sides[arm] for arm in order if arm in sides]
        yield from ((side, first.block, place, traffic) for place, side in enumerate(mine))


def are_fresh_starts(loads: Sequence[LoadRun], unit: int) -> bool:
    """Return whether blocks follow one another, each with loads of one draw of it."""
    blocks = [loads[at : at + unit] for at in range(0, len(loads), unit)]
    numbers = [block[0].block for block in blocks]
    alike = all(len({(load.block, load.server_run) for load in block}) == 1 for block in blocks)
    return alike and numbers == sorted(set(numbers))


@dataclass(frozen=True)
class ServerRunSchedule:
    """Starts of servers that stay up, of one measurement."""

    sides: tuple[str, ...]

    @property
    def unit(self) -> int:
        """Loads of a block."""
        return len(self.sides)

    def next_server_run(self, seed: int, begun: int, loads: Sequence[LoadRun]) -> ServerRun:
        draw = server_run_seed(seed, begun, digest_loads(loads))
        return ServerRun(begun, self.sides, len(loads) // self.unit, draw)

    def drawn(self, seed: int, loads: Sequence[LoadRun], looks: int) -> Iterator[DrawnLoad]:
        """Yield the randomization of each load, if these are all measured loads."""
        block, before = 0, ""
        for server_run, group in groupby(loads, lambda load: load.server_run):
            group_loads = list(group)
            draw = Randomization(server_run_seed(seed, server_run, before), self.sides)
            before = digest_loads(group_loads, before)
            for _ in range(looks):
                draw.next_probe()
            for _ in range(len(group_loads) // self.unit):
                unit_seed, order = draw.next_unit()
                yield from ((side, block, place, unit_seed) for place, side in enumerate(order))
                block += 1

    def are_consecutive(self, loads: Sequence[LoadRun], begun: int) -> bool:
        """Return whether the loads name consecutive server starts among `begun` ones."""
        server_runs = [load.server_run for load in loads]
        if server_runs != sorted(server_runs) or (server_runs and server_runs[-1] >= begun):
            return False
        sizes = [len(list(group)) for _, group in groupby(server_runs)]
        return all(size % self.unit == 0 for size in sizes)
