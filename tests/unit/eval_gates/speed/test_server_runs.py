"""Recorded loads show the randomization of each server start, also after interruptions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from measured_loads import block

from eval_gates.speed.load_run import LoadRun
from eval_gates.speed.randomization import Randomization
from eval_gates.speed.server_runs import (
    ServerRunSchedule,
    are_fresh_starts,
    draw_block,
    draw_fresh,
)

SIDES = ("baseline", "candidate")
ONCE = ServerRunSchedule(SIDES)
UNITS = st.lists(st.integers(0, 3), min_size=1, max_size=6)


def measure(seed: int, tries: list[int]) -> tuple[list[LoadRun], int]:
    """Loads of starts that each ended after so many blocks."""
    loads: list[LoadRun] = []
    for begun, blocks in enumerate(tries):
        server_run = ONCE.next_server_run(seed, begun, loads)
        draw = Randomization(server_run.draw, server_run.sides)
        for _ in SIDES:
            draw.next_probe()
        for number in range(server_run.block, server_run.block + blocks):
            of_unit, order = draw.next_unit()
            drawn = {"block": number, "seed": of_unit, "server_run": server_run.number}
            loads += [load_of(side, place, **drawn) for place, side in enumerate(order)]
    return loads, len(tries)


def load_of(side: str, place: int, **drawn: int) -> LoadRun:
    return block(0, 1.0)[0].model_copy(update={"side": side, "order": place, **drawn})


@given(tries=UNITS, seed=st.integers(0, 2**63))
def test_what_was_measured_is_what_was_drawn_wherever_it_was_interrupted(
    tries: list[int], seed: int
) -> None:
    whole, begun = measure(seed, tries)
    drawn = list(ONCE.drawn(seed, whole, looks=2))
    assert [(each.side, each.block, each.order, each.seed) for each in whole] == drawn
    assert ONCE.are_consecutive(whole, begun)
    assert ONCE.are_consecutive(whole, begun + 1)  # the last was thrown away
    if whole:
        assert not ONCE.are_consecutive(whole, whole[-1].server_run)
        assert (
            not ONCE.are_consecutive(whole[::-1], begun)
            or len({each.server_run for each in whole}) == 1
        )


ARMS = ("baseline", "fp8", "awq")


@given(
    starts=st.lists(st.integers(0, 2), min_size=1, max_size=6),
    first=st.integers(0, 5),
    seed=st.integers(0, 2**63),
)
def test_a_variants_share_of_blocks_is_what_was_drawn(
    starts: list[int], first: int, seed: int
) -> None:
    """Whether the other arm took part, and whether blocks were begun several times."""
    loads, sides = list[LoadRun](), {"baseline": "baseline", "awq": "candidate"}
    for number, start in enumerate(starts, first):
        order, of_block = draw_block(seed, number, start, ARMS)
        assert sorted(order) == sorted(ARMS)
        mine = [sides[arm] for arm in order if arm in sides]
        drawn = {"block": number, "seed": of_block, "server_run": start}
        loads += [load_of(side, place, **drawn) for place, side in enumerate(mine)]
    found = list(draw_fresh(seed, loads, ARMS, sides))
    assert [(each.side, each.block, each.order, each.seed) for each in loads] == found
    assert are_fresh_starts(loads, 2)
    torn = [*loads[:-1], loads[-1].model_copy(update={"server_run": 9})]
    assert not are_fresh_starts(torn, 2)
    if len(starts) > 1:
        assert not are_fresh_starts([*loads[2:], *loads[:2]], 2)


def test_a_killed_block_has_other_prompts_and_each_arm_comes_first_now_and_then() -> None:
    drawn = [draw_block(7, number, start, ARMS) for number in range(30) for start in range(2)]
    assert len({traffic for _, traffic in drawn}) == 60
    assert {order[0] for order, _ in drawn} == set(ARMS)


def test_no_seed_of_a_block_that_was_half_measured_is_drawn_again() -> None:
    """Its prompts may be in the cache of a server that runs on."""
    (interrupted, _), (whole, _) = (measure(7, each) for each in ([1, 2], [3]))
    assert interrupted[0].seed == whole[0].seed
    assert {each.seed for each in interrupted[2:]}.isdisjoint({each.seed for each in whole})


@given(tries=st.lists(st.integers(1, 3), min_size=2, max_size=5), seed=st.integers(0, 2**63))
def test_blocks_left_out_at_the_end_of_a_start_are_missed_in_the_next_one(
    tries: list[int], seed: int
) -> None:
    """Also if all others get new numbers, and no start is left empty."""
    loads, begun = measure(seed, tries)
    for server_run in range(begun - 1):
        end = next(n for n, load in enumerate(loads) if load.server_run > server_run)
        kept = [*loads[: end - 2], *loads[end:]]
        kept = [each.model_copy(update={"block": n // 2}) for n, each in enumerate(kept)]
        drawn = list(ONCE.drawn(seed, kept, looks=2))
        assert [(each.side, each.block, each.order, each.seed) for each in kept] != drawn
        other = loads[end - 1].model_copy(update={"prompts_sha256": "b" * 64})
        changed = [*loads[: end - 1], other, *loads[end:]]
        assert [each[3] for each in ONCE.drawn(seed, changed, looks=2)] != [
            each.seed for each in changed
        ]
