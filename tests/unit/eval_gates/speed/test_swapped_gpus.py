"""Each side on a separate GPU, swapped once: a GPU's own speed decides nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from measured_loads import load_in_waves

from eval_gates.speed.load_run import Interference, LoadRun
from eval_gates.speed.randomization import SIDES
from eval_gates.speed.server_runs import ServerRunSchedule
from eval_gates.speed.throughput_ratio import ThroughputRatioRule

APART = 12  # blocks before the swap
RULE = ThroughputRatioRule(
    min_ratio=1.0, alpha=0.05, blocks=10, server_mode="swapped", loads_per_server_run=APART
)


def measured(
    ratio: float, blocks: int, *, gpu: float = 1.0, runs: list[int] | None = None
) -> list[LoadRun]:
    """Blocks of servers with that ratio, where the first GPU is so many times as fast."""
    schedule = RULE.schedule(SIDES)
    loads = []
    for number in range(blocks):
        for place, side in enumerate(schedule.by_gpus(7, number)):
            speed = (ratio if side == "candidate" else 1.0) * (gpu if place == 0 else 1.0)
            run = runs[number] if runs else number // APART
            known = {"seed": number + 1, "prompts_sha256": f"{number:064x}", "server_run": run}
            given = {"side": side, "block": number, "order": place, **known}
            loads.append(load_in_waves(seconds=1 / speed, **given))
    return loads


@given(gpu=st.floats(0.5, 2.0), ratio=st.floats(0.5, 2.0))
def test_a_gpu_s_own_speed_is_in_no_value(gpu: float, ratio: float) -> None:
    loads = measured(ratio, 2 * APART, gpu=gpu)
    sound = [load for unit in RULE.units(loads) for load in unit]
    assert RULE.margins(sound) == pytest.approx(np.full(APART, np.log(ratio)))
    assert len(RULE.slack(sound)[0]) == APART


@pytest.mark.parametrize(("ratio", "gpu"), [(1.02, 1.0), (1.02, 0.97), (1.02, 1.03), (0.98, 1.03)])
def test_nothing_is_decided_before_the_swap(ratio: float, gpu: float) -> None:
    for blocks in range(1, APART + 10):
        loads = measured(ratio, blocks, gpu=gpu)
        assert RULE.state(loads) == "open"
        assert RULE.needs_more(loads)
    found = RULE.evaluate(measured(ratio, 2 * APART, gpu=gpu))
    assert (found.state, found.n) == ("pass" if ratio > 1 else "fail", 10)
    assert found.estimate == pytest.approx(ratio)


def test_equal_servers_do_not_pass_by_a_faster_gpu() -> None:
    """Without the pairs, all blocks of the first half would be on one side."""
    loads = [load for gpu in (1.03, 0.97) for load in measured(1.0, APART, gpu=gpu)]
    assert RULE.state(measured(1.0, 2 * APART, gpu=1.03)) == "open"
    together = RULE.model_copy(update={"server_mode": "concurrent"})
    assert together.state(loads[: 2 * APART]) in ("pass", "fail")


@pytest.mark.parametrize(("ratio", "verdict"), [(1.0, "open"), (1.1, "pass")])
def test_a_gpu_that_becomes_slower_is_no_pass(ratio: float, verdict: str) -> None:
    """Half of what changes from the one half to the other stays in every value."""
    first = RULE.schedule(SIDES).by_gpus(7, 0)[0]
    drift = -0.005 if first == "candidate" else 0.005  # in the candidate's favour
    loads = [
        load
        for number in range(2 * APART)
        for load in measured(ratio, number + 1, gpu=1 + drift * number)[-2:]
    ]
    margins = RULE.margins([load for unit in RULE.units(loads) for load in unit])
    assert RULE.evaluate_margins(margins).state == "pass"
    found = RULE.evaluate(loads)
    assert (found.state, bool(found.withheld)) == (verdict, verdict == "open")


def test_a_fault_on_either_gpu_voids_the_pair_of_blocks() -> None:
    loads = measured(1.02, 2 * APART)
    cap = [Interference(kind="throttled", what="power cap")]
    bad = {2 * 5, 2 * (APART + 7)}
    loads = [
        each.model_copy(update={"interference": cap}) if n in bad else each
        for n, each in enumerate(loads)
    ]
    found = RULE.evaluate(loads)
    assert (found.state, found.lost, found.n) == ("open", 2, 10)
    assert found.most > found.n  # two more phases follow
    assert RULE.needs_more(loads)
    half = RULE.evaluate(loads[:APART])
    assert [each.block for each in half.voided] == [5]  # before its pair is measured


@pytest.mark.parametrize(
    ("runs", "lost"),
    [
        ([0] * 12 + [1] * 12, 0),
        ([0] * 4 + [1] * 8 + [2] * 12, 1),
        ([0] * 12 + [1] * 6 + [2] * 6, 1),
        ([0] * 12 + [2] * 12, 1),
        ([0] * 12 + [1] * 12 + [2] * 12 + [3] * 12, 0),
    ],
)
def test_a_swap_is_no_lost_start_and_a_crash_is(runs: list[int], lost: int) -> None:
    loads = measured(1.02, len(runs), runs=runs)
    assert sum(RULE.count_lost_runs(loads)) == lost
    assert len(RULE.count_lost_runs(loads)) == len(RULE.units(loads)) == len(RULE.count(loads))


def test_the_warm_up_of_both_starts_does_not_count() -> None:
    loads = measured(1.0, 2 * APART)
    assert RULE.count(loads).tolist() == [False] * 2 + [True] * 10
    counted = {*range(2, APART), *range(APART + 2, 2 * APART)}
    assert RULE.counted_blocks(loads) == counted
    assert RULE.counted_blocks(loads[: 2 * (APART + 5)]) == {*range(2, 5), *range(14, 17)}


def test_a_coin_decides_who_has_the_first_gpu_and_the_swap_turns_it_round() -> None:
    schedule = RULE.schedule(SIDES)
    firsts = [schedule.by_gpus(seed, 0)[0] for seed in range(2000)]
    assert 900 < firsts.count("baseline") < 1100
    for seed in range(20):
        phases = [schedule.by_gpus(seed, number * APART) for number in range(4)]
        assert phases[0] == phases[1][::-1]
        assert phases[2] == phases[3][::-1]
    assert ServerRunSchedule(SIDES, None).by_gpus(1, 0) == ()


def test_a_start_does_not_last_over_a_swap() -> None:
    schedule = RULE.schedule(SIDES)
    assert schedule.are_consecutive(measured(1.0, 2 * APART), 2)
    assert not schedule.are_consecutive(measured(1.0, 2 * APART, runs=[0] * 2 * APART), 2)
    assert [n for n in range(1, 60) if schedule.is_swap_due(n)] == [24, 48]
    assert not ServerRunSchedule(SIDES, None).is_swap_due(24)
