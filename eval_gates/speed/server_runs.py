"""Schedule of a measurement's loads over server runs.

Together: the servers of all sides run concurrently and measure block after block. After a kill or
crash, another server run continues after the last complete block with new prompts.

Interleaved ("alternate"): one server runs at a time and measures a few loads of one side. Two runs
form a pair: one for each side, with the same prompts, in random order. If one ends early, another
run of that side measures its remaining loads; their prompts are new to its server.

Swapped: as together, but each side has separate GPUs, and both loads of a block run at the same
time. After a number of blocks both servers are started again on each other's GPUs, and measure as
many blocks. A coin decides who has which GPUs first. The value of two blocks at the same place
before and after a swap does not depend on how fast each GPU is.

Randomization follows from one seed, plus the number of the pair, or the number of the server run
and all earlier loads. An omitted load would change later prompts, so verification detects it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Literal, TypeVar

from pydantic import Field

from eval_gates.speed.load_run import LoadRun, NumericRecord, fits_evidence
from eval_gates.speed.randomization import Randomization
from pipeline.core.digest import digest_json

ServerMode = Literal["concurrent", "interleaved", "swapped"]
Item = TypeVar("Item")
DrawnLoad = tuple[str, int, int, int]
"""Randomization of one load: side, block, place, seed."""


class ServerRunRule(NumericRecord):
    """Rule of a measurement's server runs."""

    server_mode: ServerMode = "concurrent"
    loads_per_server_run: int = Field(
        1,
        ge=1,
        le=2_000,
        description="loads per interleaved server run, or blocks between two swaps of GPUs",
    )
    began: list[int] = Field(
        [0], min_length=1, description="first server run of each run with a budget for lost units"
    )

    def schedule(self, sides: Sequence[str]) -> ServerRunSchedule:
        loads, mode = self.loads_per_server_run, self.server_mode
        return ServerRunSchedule(
            tuple(sides),
            loads if mode == "interleaved" else None,
            loads if mode == "swapped" else None,
        )

    def units(self, loads: Sequence[LoadRun]) -> list[Sequence[LoadRun]]:
        """Return the loads of each unit; of swapped GPUs only of whole ones."""
        size = max(1, self.schedule(sorted({load.side for load in loads})).unit)
        parts = [loads[start : start + size] for start in range(0, len(loads), size)]
        if self.server_mode != "swapped":
            return parts
        return [[*before, *after] for before, after in self.pair_swapped(parts)]

    def pair_swapped(self, blocks: Sequence[Item]) -> list[tuple[Item, Item]]:
        """Pair each block before a swap with that at the same place after it, if measured."""
        apart = self.loads_per_server_run
        firsts = (n for n in range(len(blocks) - apart) if n // apart % 2 == 0)
        return [(blocks[n], blocks[n + apart]) for n in firsts]

    def fits_evidence(self, loads: Sequence[LoadRun]) -> bool:
        sides = {load.side for load in loads}
        return not sides or fits_evidence(loads, self.schedule(sorted(sides)).unit)

    def count_lost_runs(self, loads: Sequence[LoadRun]) -> list[int]:
        """Return how many server runs ended early for each unit: [units]."""
        sides = sorted({load.side for load in loads})
        unit = self.schedule(sides).unit if sides else 1
        server_runs = [load.server_run for load in loads[unit - 1 :: unit]]
        if self.server_mode == "interleaved":
            server_runs = [run + 1 - len(sides) * (n + 1) for n, run in enumerate(server_runs)]
        # If a run ended by the rule, its last server run did not end early.
        ends = [first - 1 for first in self.began[1:]]
        if self.server_mode == "interleaved":
            ends = []
        swap = self.loads_per_server_run if self.server_mode == "swapped" else len(loads) + 1
        lost = []
        for block, (before, run) in enumerate(pairwise([0, *server_runs])):
            wanted = max(sum(before <= end < run for end in ends), int(block % swap == 0 < block))
            lost.append(max(0, run - before - wanted))
        if self.server_mode == "swapped":
            return [before + after for before, after in self.pair_swapped(lost)]
        return lost

    def continuation_starts(self, units: Sequence[Sequence[LoadRun]]) -> list[int]:
        """Return the first unit of each run that continued the measurement."""
        place = -1 if self.server_mode == "swapped" else 0
        server_runs = [unit[place].server_run for unit in units]
        firsts = [sum(run < began for run in server_runs) for began in self.began[1:]]
        return [first for first in firsts if first < len(server_runs)]


@dataclass(frozen=True)
class ServerRun:
    """The part of a measurement for one server run."""

    number: int  # among all that were started, from 0
    sides: tuple[str, ...]  # whose servers run; of swapped GPUs in the order of the GPUs
    block: int  # number of its first block
    draw: int  # randomization seed, of the run or of its pair
    order: int = 0  # position of its side in the pair


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
    """Return a server run's seed; `before` is the digest of earlier loads."""
    return int(digest_json([seed, number, before])[:16], 16) if number else seed


@dataclass(frozen=True)
class ServerRunSchedule:
    """Server runs of one measurement; `loads` None: the sides run concurrently."""

    sides: tuple[str, ...]
    loads: int | None
    swap: int | None = None  # blocks between two swaps of GPUs

    @property
    def unit(self) -> int:
        return len(self.sides) * (self.loads or 1)

    @property
    def whole(self) -> int:
        return len(self.sides) if self.loads is None else 1

    def next_server_run(self, seed: int, begun: int, loads: Sequence[LoadRun]) -> ServerRun:
        if self.loads is None:
            draw, block = server_run_seed(seed, begun, digest_loads(loads)), len(loads) // self.unit
            return ServerRun(begun, self.by_gpus(seed, block) or self.sides, block, draw)
        pair, done = divmod(len(loads), self.unit)
        place, done = divmod(done, self.loads)
        order, _ = self.draw_pair(seed + pair)
        return ServerRun(begun, (order[place],), pair * self.loads + done, seed + pair, place)

    def is_swap_due(self, loads: int) -> bool:
        """Return whether GPUs are swapped after that many loads."""
        return self.swap is not None and loads % (self.unit * self.swap) == 0

    def by_gpus(self, seed: int, block: int) -> tuple[str, ...]:
        """Return the sides in the order of their GPUs, drawn for two phases; () if not swapped."""
        if self.swap is None:
            return ()
        drawn, is_after = divmod(block // self.swap, 2)
        _, order = Randomization(seed + drawn, self.sides).next_unit()
        return tuple(reversed(order) if is_after else order)

    def draw_pair(self, seed: int) -> tuple[list[str], list[int]]:
        """Return a pair's sides in order, and their loads' seeds."""
        draw = Randomization(seed, self.sides)
        units = [draw.next_unit() for _ in range(self.loads or 1)]
        return units[0][1], [unit_seed for unit_seed, _ in units]

    def drawn(self, seed: int, loads: Sequence[LoadRun], looks: int) -> Iterator[DrawnLoad]:
        """Yield the randomization of each load, if these are all measured loads."""
        block, before = 0, ""
        if self.loads is None:
            for server_run, group in groupby(loads, lambda load: load.server_run):
                group_loads = list(group)
                draw = Randomization(server_run_seed(seed, server_run, before), self.sides)
                before = digest_loads(group_loads, before)
                for _ in range(looks):
                    draw.next_probe()
                for _ in range(len(group_loads) // self.unit):
                    unit_seed, drawn = draw.next_unit()
                    order = self.by_gpus(seed, block) or drawn
                    yield from ((side, block, place, unit_seed) for place, side in enumerate(order))
                    block += 1
            return
        for pair in range(len(loads) // self.unit):
            order, seeds = self.draw_pair(seed + pair)
            for place, side in enumerate(order):
                for number, load_seed in enumerate(seeds):
                    yield side, pair * self.loads + number, place, load_seed

    def are_consecutive(self, loads: Sequence[LoadRun], begun: int) -> bool:
        """Return whether the loads name consecutive server runs among `begun` ones."""
        server_runs = [load.server_run for load in loads]
        if server_runs != sorted(server_runs) or (server_runs and server_runs[-1] >= begun):
            return False
        each = [
            list(group_loads)
            for _, group_loads in groupby(enumerate(server_runs), lambda pair: pair[1])
        ]
        if self.loads is None:
            phase = self.unit * (self.swap or len(loads) + 1)
            return all(
                len(group_loads) % self.unit == 0
                and group_loads[0][0] // phase == group_loads[-1][0] // phase
                for group_loads in each
            )
        return all(
            group_loads[0][0] // self.loads == group_loads[-1][0] // self.loads
            for group_loads in each
        )
