"""Blocks and rounds: the same prompts on both sides, other ones in each, until the rule decides."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from listener import Listener
from measured_loads import round_of

from eval_gates.speed.load_log import LoadLog
from eval_gates.speed.load_run import LoadRun
from eval_gates.speed.randomization import SIDES
from eval_gates.speed.rounds import count_arrivals
from eval_gates.speed.server_runs import ServerRun, ServerRunSchedule
from pipeline.core.errors import ServingError
from pipeline.workers.speed import (
    generate_of_one_side,
    generate_units,
    measure_at_once,
    measure_server_run,
)

AT_ONCE = {"rate": None, "concurrency": 4}
WORKLOAD = {
    **{"kind": "random", "input_tokens": 8, "output_tokens": 3},
    **{"seconds": 1.0, "warmup_seconds": 2.0},
}


def spec(sides: tuple[str, ...] = ("baseline", "candidate"), **workload: Any) -> dict[str, Any]:
    return {
        "name": "chat",
        "workload": {**WORKLOAD, "arrivals": AT_ONCE, **workload},
        **{"rule": {"kind": "ratio", "min_ratio": 0.5, "alpha": 0.05, "blocks": 20}},
        **{"sides": list(sides), "endpoints": {side: {} for side in sides}},
        "server_run": asdict(ServerRun(0, sides, 0, 1)),
    }


@dataclass
class Measuring:
    """Measures immediately; a request takes so many seconds, by side."""

    seconds: dict[str, float] = field(default_factory=dict)
    asked: list[tuple[str, int, int]] = field(default_factory=list)
    rates: list[float | None] = field(default_factory=list)

    def __call__(self, side: str, requests: int, seed: int, rate: float | None) -> dict[str, Any]:
        self.rates.append(rate)
        self.asked.append((side, requests, seed))
        lasts = requests * self.seconds.get(side, 1.0)
        return {
            "prompts_sha256": f"{seed:064x}",
            **{"started": 1.0, "seconds": lasts, "client_lag_s": 0.001},
            "requests": {
                name: [value] * requests
                for name, value in {
                    **{"ttft_s": 0.1, "error": None},
                    **{"longest_pause_s": 0.1, "input_tokens": 8, "output_tokens": 3},
                }.items()
            }
            | {
                "start_s": [lasts * (n // 4 * 4) / requests for n in range(requests)],
                "end_s": [lasts * (n // 4 * 4 + 4) / requests for n in range(requests)],
            },
        }


def units(measuring: Measuring, **changes: Any) -> Iterator[list[LoadRun]]:
    given = spec(**changes)
    return generate_units(given, ServerRun(**given["server_run"]), measuring, [])


def test_a_block_asks_both_sides_the_same_and_each_block_something_else() -> None:
    blocks = list(islice(units(Measuring()), 8))
    for number, block in enumerate(blocks):
        assert {load.side for load in block} == {"baseline", "candidate"}
        assert len({load.seed for load in block}) == 1
        assert [load.order for load in block] == [0, 1]
        assert {load.block for load in block} == {number}
    assert len({block[0].seed for block in blocks}) == 8
    assert {block[0].side for block in blocks} == {"baseline", "candidate"}  # a coin, not an order


def test_loads_have_ten_waves_at_least_and_last_where_a_server_is_fast() -> None:
    slow = Measuring()
    next(units(slow))
    # One short load a side warms it up and says how fast it is; no load counts before.
    assert [requests for _, requests, _ in slow.asked] == [8, 8, 40, 40]
    assert len({seed for _, _, seed in slow.asked}) == 3
    fast = Measuring({"candidate": 0.001})
    next(units(fast))
    assert fast.asked[-1][1] == fast.asked[-2][1] == 1208  # 1.2 s of 1,000 a second, and 2 waves


def test_natural_answers_get_more_waves() -> None:
    slow = Measuring()
    next(units(slow, output="natural"))
    assert [requests for _, requests, _ in slow.asked] == [8, 8, 64, 64]


def test_a_round_sends_a_drawn_number_of_requests_that_fills_its_time() -> None:
    """2.5 requests/s for a second that counts, with a warm-up of two before and after it."""
    measuring = Measuring()
    rate = {"rate": 2.5, "concurrency": None}
    rounds = list(islice(units(measuring, sides=("candidate",), arrivals=rate), 8))
    assert [len(load.requests) for (load,) in rounds] == [
        count_arrivals(load.seed, 2.5, 5.0) for (load,) in rounds
    ]
    assert measuring.rates == [len(load.requests) / 5.0 for (load,) in rounds]
    assert len({len(load.requests) for (load,) in rounds}) > 1
    load = rounds[0][0]
    assert (load.arrivals, load.rate, load.warmup_s, load.measured_s) == ("rate", 2.5, 2, 1)


def test_rounds_become_as_long_as_their_answers_need() -> None:
    """Answers of half a second: ten of them and a quarter more, after a warm-up of two."""
    rate = {"rate": 40.0, "concurrency": None}
    given, loads = spec(("candidate",), arrivals=rate, warmup_seconds=0.5), [answered_in(0.5)]
    rounds = generate_units(given, ServerRun(**given["server_run"]), Measuring(), loads)
    (second,) = next(rounds)
    assert (second.warmup_s, second.measured_s) == (2, 7)
    assert len(second.requests) == count_arrivals(second.seed, 40.0, 11.0)


def answered_in(seconds: float) -> LoadRun:
    requests = round_of(0).requests.model_dump()
    ends = [start + seconds for start in requests["start_s"]]
    return round_of(0, requests={**requests, "end_s": ends})


@dataclass
class After:
    """A rule that is over after so many loads."""

    loads: int
    cap: int = 20
    unit: str = "blocks"

    def schedule(self, sides: list[str]) -> ServerRunSchedule:
        return ServerRunSchedule(tuple(sides), None)

    def needs_more(self, loads: list[LoadRun]) -> bool:
        return len(loads) < self.loads

    def state(self, loads: list[LoadRun]) -> str:
        return "pass"


@pytest.mark.parametrize("loads", [2, 6])
def test_it_measures_until_the_rule_wants_no_more_and_keeps_every_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loads: int
) -> None:
    monkeypatch.setattr("eval_gates.speed.gate_rule.parse_rule", lambda *_: After(loads))
    measure_server_run(spec(), Measuring(), Listener(), tmp_path)
    kept = LoadLog(tmp_path).loads()
    assert [load.block for load in kept] == [n for n in range(loads // 2) for _ in range(2)]


def test_another_life_goes_on_with_other_prompts_and_warms_up_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = Measuring(), Measuring()
    monkeypatch.setattr("eval_gates.speed.gate_rule.parse_rule", lambda *_: After(4))
    measure_server_run(spec(), first, Listener(), tmp_path)
    monkeypatch.setattr("eval_gates.speed.gate_rule.parse_rule", lambda *_: After(6))
    life = ServerRun(1, ("baseline", "candidate"), 2, 2)
    measure_server_run({**spec(), "server_run": asdict(life)}, second, Listener(), tmp_path)
    kept = LoadLog(tmp_path).loads()
    assert [(load.block, load.server_run) for load in kept[::2]] == [(0, 0), (1, 0), (2, 1)]
    seeds = [{seed for _, _, seed in each.asked} for each in (first, second)]
    assert seeds[0].isdisjoint(seeds[1])
    assert len(second.asked) == 4  # a look a side, and a block


class TestAlternatingLives:
    LIVES = ServerRunSchedule(("baseline", "candidate"), 3)

    def of_a_life(self, measuring: Measuring, before: list[LoadRun]) -> list[LoadRun]:
        life = self.LIVES.next_server_run(1, len(before) // 3, before)
        return list(generate_of_one_side(spec(), self.LIVES, life, before, measuring))

    def test_both_sides_of_a_pair_are_asked_the_same(self) -> None:
        measuring = Measuring({"candidate": 0.5})
        loads: list[LoadRun] = []
        for _ in range(4):
            loads += self.of_a_life(measuring, loads)
        pairs = loads[:6], loads[6:]
        for number, pair in enumerate(pairs):
            ours, theirs = pair[:3], pair[3:]
            assert {load.side for load in ours} != {load.side for load in theirs}
            assert [load.seed for load in ours] == [load.seed for load in theirs]
            assert [load.block for load in ours] == [3 * number + n for n in range(3)]
        assert {load.seed for load in pairs[0]}.isdisjoint({load.seed for load in pairs[1]})
        assert [load.server_run for load in loads] == [n for n in range(4) for _ in range(3)]
        # A look that counts for nothing, then as many requests on both sides.
        counted = [[requests for _, requests, _ in measuring.asked[4 * n :][:4]] for n in range(4)]
        assert counted[0][1:] == counted[1][1:]
        assert counted[2][1:] == counted[3][1:]

    def test_a_load_is_as_long_for_the_faster_side_once_it_is_known(self) -> None:
        measuring = Measuring({"baseline": 0.01, "candidate": 0.001})
        loads: list[LoadRun] = []
        for _ in range(4):
            loads += self.of_a_life(measuring, loads)
        assert measuring.asked[-1][1] == 1208  # 1.2 s of 1,000 a second, and 2 waves


def test_a_life_ends_after_its_loads(tmp_path: Path) -> None:
    given = spec()
    given["rule"] |= {"server_mode": "interleaved", "loads_per_server_run": 2}
    life = ServerRunSchedule(("baseline", "candidate"), 2).next_server_run(1, 0, [])
    measure_server_run({**given, "server_run": asdict(life)}, Measuring(), Listener(), tmp_path)
    assert [load.side for load in LoadLog(tmp_path).loads()] == list(life.sides) * 2


class TestApart:
    """Each side has separate GPUs, and both loads of a block run at the same time."""

    def test_the_start_ends_with_the_swap(self, tmp_path: Path) -> None:
        given = spec()
        given["rule"] |= {"server_mode": "swapped", "loads_per_server_run": 3}
        schedule = ServerRunSchedule(SIDES, None, 3)
        for number in range(2):
            before = LoadLog(tmp_path).loads()
            start = schedule.next_server_run(1, number, before)
            worker_spec = {**given, "server_run": asdict(start)}
            measure_server_run(worker_spec, Measuring(), Listener(), tmp_path)
        loads = LoadLog(tmp_path).loads()
        assert [load.server_run for load in loads] == [0] * 6 + [1] * 6
        drawn = list(schedule.drawn(1, loads, 2))
        assert [(each.side, each.block, each.order, each.seed) for each in loads] == drawn
        assert [each.side for each in loads[:2]] == [each.side for each in loads[6:8]][::-1]

    def test_both_are_measured_at_once_with_the_same_prompts(self) -> None:
        at_once = multiprocessing.get_context("fork").Barrier(2)

        def measure(side: str, requests: int, seed: int, rate: float | None) -> dict[str, Any]:
            at_once.wait(20)
            return {"side": side, "asked": (requests, seed, rate), "by": os.getpid()}

        found = measure_at_once(measure, SIDES, 8, 7, None)
        each = [found(side, 8, 7, None) for side in SIDES]
        assert [one["side"] for one in each] == list(SIDES)
        assert {one["asked"] for one in each} == {(8, 7, None)}
        assert len({os.getpid(), *(one["by"] for one in each)}) == 3

    @pytest.mark.parametrize("ends", ["error", "killed"])
    def test_a_side_without_a_result_ends_both(self, ends: str) -> None:
        def measure(side: str, *_: Any) -> dict[str, Any]:
            if side == SIDES[0]:
                if ends == "killed":
                    os.kill(os.getpid(), signal.SIGKILL)
                raise ServingError("not one of 8 requests was answered")
            time.sleep(60)
            return {}

        began = time.monotonic()
        with pytest.raises(ServingError, match=SIDES[0]):
            measure_at_once(measure, SIDES, 8, 7, None)
        assert time.monotonic() - began < 30


def test_each_round_of_limits_has_a_start_of_its_own() -> None:
    """A warm-up at the rate that counts for nothing, and one round."""
    measuring, lives = Measuring(), ServerRunSchedule(("candidate",), 1)
    rate = {"rate": 2.5, "concurrency": None}
    given, loads = spec(("candidate",), arrivals=rate), list[LoadRun]()
    for number in range(3):
        life = lives.next_server_run(1, number, loads)
        loads += generate_of_one_side(given, lives, life, loads, measuring)
    assert [(load.server_run, load.block, load.side) for load in loads] == [
        (n, n, "candidate") for n in range(3)
    ]
    assert len({seed for _, _, seed in measuring.asked}) == len(measuring.asked) == 6
    assert [list(lives.drawn(1, loads, 0))[n][3] for n in range(3)] == [each.seed for each in loads]
    assert lives.are_consecutive(loads, 3)
