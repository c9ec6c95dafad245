"""Schedule of a measurement's loads over server starts.

Fresh: each load has its own server start. The starts of a block, one for each side, follow one
another in drawn order, and their loads have the same prompts. If one ends early, another start of
that side measures its load.

Once: the servers of all sides are up, and measure block after block in drawn order. After a kill or
crash, another start continues after the last complete block with new prompts.

Randomization follows from one seed, plus the number of the block, or the number of the start and
all earlier loads. An omitted load would change later prompts, so verification detects it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
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
        return ServerRunSchedule(tuple(sides), is_fresh=self.starts == "fresh")

    def fits_evidence(self, loads: Sequence[LoadRun]) -> bool:
        sides = {load.side for load in loads}
        return not sides or fits_evidence(loads, len(sides))


@dataclass(frozen=True)
class ServerRun:
    """The part of a measurement for one server start."""

    number: int  # among all that were started, from 0
    sides: tuple[str, ...]  # whose servers run
    block: int  # number of its first block
    draw: int  # randomization seed, of the start or of its block
    order: int = 0  # position of its side in the block


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


@dataclass(frozen=True)
class ServerRunSchedule:
    """Server starts of one measurement."""

    sides: tuple[str, ...]
    is_fresh: bool

    @property
    def unit(self) -> int:
        """Loads of a block."""
        return len(self.sides)

    @property
    def whole(self) -> int:
        """Loads that are kept together: half a block of sides that are up together is no load."""
        return 1 if self.is_fresh else self.unit

    def next_server_run(self, seed: int, begun: int, loads: Sequence[LoadRun]) -> ServerRun:
        block, place = divmod(len(loads), self.unit)
        if not self.is_fresh:
            draw = server_run_seed(seed, begun, digest_loads(loads))
            return ServerRun(begun, self.sides, block, draw)
        order, _ = self.draw_block(seed + block)
        return ServerRun(begun, (order[place],), block, seed + block, place)

    def draw_block(self, seed: int) -> tuple[list[str], int]:
        """Return a block's sides in order, and its loads' seed."""
        unit_seed, order = Randomization(seed, self.sides).next_unit()
        return order, unit_seed

    def drawn(self, seed: int, loads: Sequence[LoadRun], looks: int) -> Iterator[DrawnLoad]:
        """Yield the randomization of each load, if these are all measured loads."""
        if self.is_fresh:
            for block in range(len(loads) // self.unit):
                order, unit_seed = self.draw_block(seed + block)
                yield from ((side, block, place, unit_seed) for place, side in enumerate(order))
            return
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
        if self.is_fresh:
            return all(size == 1 for size in sizes)
        return all(size % self.unit == 0 for size in sizes)
