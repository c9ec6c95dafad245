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
from pipeline.workers.speed import generate_units, measure_fresh, measure_loads

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
        return ServerRunSchedule(tuple(sides))

    def needs_more(self, loads: list[LoadRun]) -> bool:
        return len(loads) < self.loads

    def state(self, loads: list[LoadRun]) -> str:
        return "pass"


@pytest.mark.parametrize("loads", [2, 6])
def test_it_measures_until_the_rule_wants_no_more_and_keeps_every_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loads: int
) -> None:
    monkeypatch.setattr("eval_gates.speed.gate_rule.parse_rule", lambda *_: After(loads))
    measure_loads(spec(), Measuring(), Listener(), tmp_path)
    kept = LoadLog(tmp_path).loads()
    assert [load.block for load in kept] == [n for n in range(loads // 2) for _ in range(2)]


def test_another_life_goes_on_with_other_prompts_and_warms_up_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = Measuring(), Measuring()
    monkeypatch.setattr("eval_gates.speed.gate_rule.parse_rule", lambda *_: After(4))
    measure_loads(spec(), first, Listener(), tmp_path)
    monkeypatch.setattr("eval_gates.speed.gate_rule.parse_rule", lambda *_: After(6))
    life = ServerRun(1, ("baseline", "candidate"), 2, 2)
    measure_loads({**spec(), "server_run": asdict(life)}, second, Listener(), tmp_path)
    kept = LoadLog(tmp_path).loads()
    assert [(load.block, load.server_run) for load in kept[::2]] == [(0, 0), (1, 0), (2, 1)]
    seeds = [{seed for _, _, seed in each.asked} for each in (first, second)]
    assert seeds[0].isdisjoint(seeds[1])
    assert len(second.asked) == 4  # a look a side, and a block


def fresh_load(
    given: dict[str, Any], measuring: Measuring, side: str, before: list[LoadRun]
) -> LoadRun:
    where = {"side": side, "block": 3, "server_run": 1, "order": len(before)}
    return measure_fresh(given, {**where, "seed": 7, "look": 6}, before, measuring)


def test_all_arms_of_a_block_are_asked_the_same_after_a_short_load() -> None:
    measuring, loads = Measuring({"candidate": 0.5}), list[LoadRun]()
    for side in ("baseline", "candidate", "candidate"):
        loads.append(fresh_load(spec(), measuring, side, loads))
    assert [(load.block, load.server_run, load.order) for load in loads] == [
        (3, 1, place) for place in range(3)
    ]
    assert len({(load.seed, len(load.requests)) for load in loads}) == 1
    assert [requests for _, requests, seed in measuring.asked if seed == 6] == [8] * 3


def test_a_start_of_limits_is_warmed_up_at_the_rate() -> None:
    measuring = Measuring()
    given = spec(("candidate",), arrivals={"rate": 2.5, "concurrency": None})
    load = fresh_load(given, measuring, "candidate", [])
    assert (load.rate, load.seed) == (2.5, 7)
    assert [seed for _, _, seed in measuring.asked] == [6, 7]
    # Its length follows from the answers of the short load.
    assert (load.measured_s or 0) >= given["workload"]["seconds"]


def test_a_start_ends_after_its_load(tmp_path: Path) -> None:
    where = {"side": "baseline", "block": 0, "server_run": 0, "order": 0}
    told = {**spec(), "start": {**where, "seed": 7, "look": 6}}
    measure_loads(told, Measuring(), Listener(), tmp_path)
    assert [load.side for load in LoadLog(tmp_path).loads()] == ["baseline"]
