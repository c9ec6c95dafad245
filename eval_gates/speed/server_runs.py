"""How the loads of one measurement are spread over lives of the servers that are measured.

Together: the servers of all sides are up at once, and a life of them measures block after block.
Where it ends too soon, by a kill or since a server died, another goes on after the last whole
block; of the one that was half measured nothing is kept, and its prompts are not sent again.

Alternate: one server is up at a time. Each life measures a few loads of one side; two lives, one a
side with the same prompts and in an order drawn by chance, are a pair. Where one ended too soon,
another of that side measures the loads that it had left; its server has none of their prompts.

What chance decides follows from one seed, and from the number of the pair, or from that of the life
and all loads before it. So kept loads show whether they are all that were measured, in that order:
where one of a life that others follow is left out, those have other prompts than follow from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Literal

from pydantic import Field

from eval_gates.speed.load_run import LoadRun, NumericRecord, has_room
from eval_gates.speed.randomization import Randomization
from pipeline.core.digest import digest_json

Drawn = tuple[str, int, int, int]
"""What chance made of one load: side, block, place, seed."""


class ServerRunRule(NumericRecord):
    """What a rule says of the lives of servers."""

    server_mode: Literal["concurrent", "interleaved"] = "concurrent"
    loads_per_server_run: int = Field(
        1, ge=1, le=100, description="of its side; of those alone that alternate"
    )
    began: list[int] = Field(
        [0], min_length=1, description="first life of each run that had a budget for lost units"
    )

    def spread_over(self, sides: Sequence[str]) -> ServerRunSchedule:
        """The lives that measure these sides, the baseline first where there is one."""
        return ServerRunSchedule(
            tuple(sides), self.loads_per_server_run if self.server_mode == "interleaved" else None
        )

    def has_room(self, loads: Sequence[LoadRun]) -> bool:
        """Whether the evidence has room for another unit after these loads."""
        sides = {load.side for load in loads}
        return not sides or has_room(loads, self.spread_over(sorted(sides)).unit)

    def lost_before(self, loads: Sequence[LoadRun]) -> list[int]:
        """How many lives another one followed too soon before each unit, or in it: [units].

        Such a life may have been ended because the unit that it was at looked bad.
        """
        sides = sorted({load.side for load in loads})
        unit = self.spread_over(sides).unit if sides else 1
        lives = [load.server_run for load in loads[unit - 1 :: unit]]
        if self.server_mode == "interleaved":
            lives = [life + 1 - len(sides) * (n + 1) for n, life in enumerate(lives)]
        # Where a run ended by the rule, its last life was not ended too soon.
        ends = [life - 1 for life in self.began[1:]]
        if self.server_mode == "interleaved":
            ends = []
        return [
            max(0, life - before - sum(before <= end < life for end in ends))
            for before, life in pairwise([0, *lives])
        ]

    def continued_at(self, units: Sequence[Sequence[LoadRun]]) -> list[int]:
        """The first unit of each run that continued the measurement."""
        lives = [unit[0].server_run for unit in units]
        firsts = [sum(life < began for life in lives) for began in self.began[1:]]
        return [first for first in firsts if first < len(lives)]


@dataclass(frozen=True)
class ServerRun:
    """What one life of servers is to measure."""

    number: int  # among all lives that were begun, from 0
    sides: tuple[str, ...]  # whose servers are up
    block: int  # number of its first block
    draw: int  # seed of its draws, or of those of its pair
    place: int = 0  # of its side in the pair


def digest_loads(loads: Iterable[LoadRun], before: str = "") -> str:
    """Of loads in their order, after those that `before` is of."""
    found = before
    for load in loads:
        timings = [load.requests.start_s, load.requests.ttft_s, load.requests.end_s]
        found = digest_json(
            [found, load.server_run, load.side, load.seed, load.prompts_sha256, timings]
        )
    return found


def draw_life(seed: int, number: int, before: str) -> int:
    """The seed of the draws of a life of all sides.

    Args:
        seed: of the measurement.
        number: of the life, from 0.
        before: digest of the loads of earlier lives that are kept.
    """
    return int(digest_json([seed, number, before])[:16], 16) if number else seed


@dataclass(frozen=True)
class ServerRunSchedule:
    """The lives of one measurement.

    Args:
        sides: that are measured.
        loads: of one life, where lives alternate; None: the sides are up together.
    """

    sides: tuple[str, ...]
    loads: int | None

    @property
    def unit(self) -> int:
        """Loads of a block, a round or a pair of lives: what the rule counts."""
        return len(self.sides) * (self.loads or 1)

    @property
    def whole(self) -> int:
        """Loads that are kept together or not at all."""
        return len(self.sides) if self.loads is None else 1

    def next_life(self, seed: int, begun: int, loads: Sequence[LoadRun]) -> ServerRun:
        """The life that goes on.

        Args:
            seed: of the measurement.
            begun: how many lives were begun.
            loads: that are kept of them.
        """
        if self.loads is None:
            draw = draw_life(seed, begun, digest_loads(loads))
            return ServerRun(begun, self.sides, len(loads) // self.unit, draw)
        pair, done = divmod(len(loads), self.unit)
        place, done = divmod(done, self.loads)
        order, _ = self.draw_pair(seed + pair)
        return ServerRun(begun, (order[place],), pair * self.loads + done, seed + pair, place)

    def draw_pair(self, seed: int) -> tuple[list[str], list[int]]:
        """The sides of a pair of lives in their order, and the seeds of the loads of each."""
        draw = Randomization(seed, self.sides)
        units = [draw.unit() for _ in range(self.loads or 1)]
        return units[0][1], [each for each, _ in units]

    def drawn(self, seed: int, loads: Sequence[LoadRun], looks: int) -> Iterator[Drawn]:
        """What chance made of each of these loads, if they are all that were measured.

        Args:
            seed: of the measurement.
            loads: whose lives are looked at, and how many they are.
            looks: loads that count for nothing, at the start of each life of all sides.
        """
        block, before = 0, ""
        if self.loads is None:
            for life, group in groupby(loads, lambda load: load.server_run):
                those = list(group)
                draw = Randomization(draw_life(seed, life, before), self.sides)
                before = digest_loads(those, before)
                for _ in range(looks):
                    draw.look()
                for _ in range(len(those) // self.unit):
                    of_unit, order = draw.unit()
                    yield from ((side, block, place, of_unit) for place, side in enumerate(order))
                    block += 1
            return
        for pair in range(len(loads) // self.unit):
            order, seeds = self.draw_pair(seed + pair)
            for place, side in enumerate(order):
                for number, each in enumerate(seeds):
                    yield side, pair * self.loads + number, place, each

    def succeed(self, loads: Sequence[LoadRun], begun: int) -> bool:
        """Whether the loads name lives that follow each other, of so many that were begun.

        Each life has whole blocks, or loads of one side in one pair.
        """
        lives = [load.server_run for load in loads]
        if lives != sorted(lives) or (lives and lives[-1] >= begun):
            return False
        each = [list(those) for _, those in groupby(enumerate(lives), lambda pair: pair[1])]
        if self.loads is None:
            return all(len(those) % self.unit == 0 for those in each)
        return all(those[0][0] // self.loads == those[-1][0] // self.loads for those in each)
