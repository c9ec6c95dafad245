"""Blocks and rounds: the same prompts on both sides, other ones in each, until the rule decides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from listener import Listener
from measured_loads import round_of

from eval_gates.speed.load_log import LoadLog
from eval_gates.speed.load_run import LoadRun
from eval_gates.speed.rounds import arrival_times
from eval_gates.speed.server_runs import ServerRun, ServerRunSchedule
from pipeline.workers.speed import generate_units, measure_fresh, measure_server_run

AT_ONCE = {"rate": None, "concurrency": 4}
WORKLOAD = {
    **{"kind": "random", "input_tokens": 8, "output_tokens": 3},
    **{"seconds": 1.0, "warmup_seconds": 2.0},
}


def spec(sides: tuple[str, ...] = ("baseline", "candidate"), **workload: Any) -> dict[str, Any]:
    return {
        "name": "chat",
        "workload": {**WORKLOAD, "arrivals": AT_ONCE, **workload},
        **{
            "rule": {
                "kind": "ratio",
                "min_ratio": 0.5,
                "alpha": 0.05,
                "blocks": 20,
                "starts": "once",
            }
        },
        **{"sides": list(sides), "endpoints": {side: {} for side in sides}},
        "server_run": asdict(ServerRun(0, sides, 0, 1)),
    }


@dataclass
class Measuring:
    """Measures immediately; a request takes so many seconds, by side."""

    seconds: dict[str, float] = field(default_factory=dict)
    asked: list[tuple[str, int, int]] = field(default_factory=list)
    times: list[Sequence[float]] = field(default_factory=list)

    def __call__(self, side: str, requests: int, seed: int, at: Sequence[float]) -> dict[str, Any]:
        self.times.append(at)
        self.asked.append((side, requests, seed))
        lasts = requests * self.seconds.get(side, 1.0)
        return {
            "prompts_sha256": f"{seed:064x}",
            **{"started": 1.0, "seconds": lasts, "client_lag_s": 0.001},
            "requests": {
                name: [value] * requests
                for name, value in {
                    **{"ttft_s": 0.1, "error": None},
                    **{"input_tokens": 8, "output_tokens": 3},
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
        len(arrival_times(load.seed, 2.5, 5.0)) for (load,) in rounds
    ]
    assert measuring.times == [arrival_times(load.seed, 2.5, 5.0) for (load,) in rounds]
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
    assert len(second.requests) == len(arrival_times(second.seed, 40.0, 11.0))


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
        return ServerRunSchedule(tuple(sides), is_fresh=False)

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


class TestFresh:
    """Each load has a new server start."""

    SCHEDULE = ServerRunSchedule(("baseline", "candidate"), is_fresh=True)

    def measure(self, measuring: Measuring, number: int) -> list[LoadRun]:
        loads: list[LoadRun] = []
        for begun in range(number):
            start = self.SCHEDULE.next_server_run(1, begun, loads)
            loads.append(measure_fresh(spec(), start, loads, measuring))
        return loads

    def test_both_sides_of_a_block_are_asked_the_same(self) -> None:
        measuring = Measuring({"candidate": 0.5})
        loads = self.measure(measuring, 8)
        pairs = list(zip(loads[::2], loads[1::2], strict=True))
        for number, (first, second) in enumerate(pairs):
            assert {first.side, second.side} == {"baseline", "candidate"}
            assert (first.seed, first.block, first.order) == (second.seed, number, 0)
            assert len(first.requests) == len(second.requests)
        assert len({first.seed for first, _ in pairs}) == 4
        assert [load.server_run for load in loads] == list(range(8))
        # A short load that counts for nothing precedes each.
        assert [requests for _, requests, _ in measuring.asked[::2]] == [8] * 8

    def test_a_load_is_as_long_for_the_faster_side_once_it_is_known(self) -> None:
        measuring = Measuring({"baseline": 0.01, "candidate": 0.001})
        self.measure(measuring, 4)
        assert measuring.asked[-1][1] == 1208  # 1.2 s of 1,000 a second, and 2 waves

    def test_a_start_ends_after_its_load(self, tmp_path: Path) -> None:
        given = spec()
        given["rule"] |= {"starts": "fresh"}
        start = self.SCHEDULE.next_server_run(1, 0, [])
        worker_spec = {**given, "server_run": asdict(start)}
        measure_server_run(worker_spec, Measuring(), Listener(), tmp_path)
        assert [load.side for load in LoadLog(tmp_path).loads()] == list(start.sides)


def test_each_load_of_limits_has_a_start_of_its_own() -> None:
    """A warm-up at the rate that counts for nothing, and one load."""
    measuring, schedule = Measuring(), ServerRunSchedule(("candidate",), is_fresh=True)
    rate = {"rate": 2.5, "concurrency": None}
    given, loads = spec(("candidate",), arrivals=rate), list[LoadRun]()
    for number in range(3):
        start = schedule.next_server_run(1, number, loads)
        loads.append(measure_fresh(given, start, loads, measuring))
    assert [(load.server_run, load.block, load.side) for load in loads] == [
        (n, n, "candidate") for n in range(3)
    ]
    assert len({seed for _, _, seed in measuring.asked}) == len(measuring.asked) == 6
    drawn = list(schedule.drawn(1, loads, 0))
    assert [each[3] for each in drawn] == [load.seed for load in loads]
    assert schedule.are_consecutive(loads, 3)
