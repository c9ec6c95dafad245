"""Recorded loads show the randomization of each server start, also after interruptions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from measured_loads import block

from eval_gates.speed.load_run import LoadRun
from eval_gates.speed.randomization import Randomization
from eval_gates.speed.server_runs import ServerRunSchedule

SIDES = ("baseline", "candidate")
ONCE, FRESH = (ServerRunSchedule(SIDES, is_fresh=each) for each in (False, True))
UNITS = st.lists(st.integers(0, 3), min_size=1, max_size=6)


def measure(schedule: ServerRunSchedule, seed: int, tries: list[int]) -> tuple[list[LoadRun], int]:
    """Loads of starts that each ended after so many blocks, or after one load or none."""
    loads: list[LoadRun] = []
    for begun, blocks in enumerate(tries):
        server_run = schedule.next_server_run(seed, begun, loads)
        made: list[tuple[str, int, int, int]] = []
        if not schedule.is_fresh:
            draw = Randomization(server_run.draw, server_run.sides)
            for _ in SIDES:
                draw.next_probe()
            for number in range(server_run.block, server_run.block + blocks):
                of_unit, order = draw.next_unit()
                made += [(side, number, place, of_unit) for place, side in enumerate(order)]
        elif blocks:
            _, of_block = schedule.draw_block(server_run.draw)
            (side,) = server_run.sides
            made = [(side, server_run.block, server_run.order, of_block)]
        common = block(0, 1.0)[0]
        loads += [
            common.model_copy(
                update={
                    "side": s,
                    "block": b,
                    "order": p,
                    "seed": d,
                    "server_run": server_run.number,
                }
            )
            for s, b, p, d in made
        ]
    return loads, len(tries)


@pytest.mark.parametrize("schedule", [ONCE, FRESH])
@given(tries=UNITS, seed=st.integers(0, 2**63))
def test_what_was_measured_is_what_was_drawn_wherever_it_was_interrupted(
    schedule: ServerRunSchedule, tries: list[int], seed: int
) -> None:
    loads, begun = measure(schedule, seed, tries)
    whole = loads[: len(loads) // schedule.unit * schedule.unit]
    drawn = list(schedule.drawn(seed, whole, looks=2))
    assert [(each.side, each.block, each.order, each.seed) for each in whole] == drawn
    assert schedule.are_consecutive(whole, begun)
    assert schedule.are_consecutive(whole, begun + 1)  # the last was thrown away
    if whole:
        assert not schedule.are_consecutive(whole, whole[-1].server_run)
        assert (
            not schedule.are_consecutive(whole[::-1], begun)
            or len({each.server_run for each in whole}) == 1
        )


def test_each_load_has_a_fresh_start_and_both_sides_of_a_block_the_same_prompts() -> None:
    loads, begun = measure(FRESH, 7, [1] * 20)
    assert [load.server_run for load in loads] == list(range(20))
    pairs = list(zip(loads[::2], loads[1::2], strict=True))
    assert all({a.side, b.side} == set(SIDES) and a.seed == b.seed for a, b in pairs)
    assert {a.side for a, _ in pairs} == set(SIDES)  # a coin, not an order
    assert len({a.seed for a, _ in pairs}) == 10
    same_start = [each.model_copy(update={"server_run": n // 2}) for n, each in enumerate(loads)]
    assert not FRESH.are_consecutive(same_start, begun)


def test_no_seed_of_a_block_that_was_half_measured_is_drawn_again() -> None:
    """Its prompts may be in the cache of a server that runs on."""
    (interrupted, _), (whole, _) = (measure(ONCE, 7, each) for each in ([1, 2], [3]))
    assert interrupted[0].seed == whole[0].seed
    assert {each.seed for each in interrupted[2:]}.isdisjoint({each.seed for each in whole})


@given(tries=st.lists(st.integers(1, 3), min_size=2, max_size=5), seed=st.integers(0, 2**63))
def test_blocks_left_out_at_the_end_of_a_start_are_missed_in_the_next_one(
    tries: list[int], seed: int
) -> None:
    """Also if all others get new numbers, and no start is left empty."""
    loads, begun = measure(ONCE, seed, tries)
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
