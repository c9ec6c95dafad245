"""Blocks and rounds: the same prompts on both sides, other ones in each, until the rule decides."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from listener import Listener

from eval_gates.speed.load import LOADS, MeasuredLoad, parse_loads
from pipeline.workers.speed import generate_units, measure_until_decided

AT_ONCE = {"rate": None, "concurrency": 4, "trace": False}
WORKLOAD = {
    **{"kind": "random", "input_tokens": 8, "output_tokens": 3},
    **{"seconds": 1.0, "warmup_seconds": 2.0},
}


def spec(sides: tuple[str, ...] = ("baseline", "candidate"), **workload: Any) -> dict[str, Any]:
    return {
        "name": "chat",
        "workload": {**WORKLOAD, "arrivals": AT_ONCE, **workload},
        **{"seed": 1, "life": 0, "endpoints": {side: {} for side in sides}},
    }


@dataclass
class Measuring:
    """Measures at once; a request takes so many seconds, by side."""

    seconds: dict[str, float] = field(default_factory=dict)
    asked: list[tuple[str, int, int]] = field(default_factory=list)

    def __call__(self, side: str, requests: int, seed: int) -> dict[str, Any]:
        self.asked.append((side, requests, seed))
        lasts = requests * self.seconds.get(side, 1.0)
        return {
            "prompts_sha256": f"{seed:064x}",
            **{"started": 1.0, "seconds": lasts, "client_lag_s": 0.001},
            "requests": {
                **{"start_s": [0.0], "ttft_s": [0.1], "end_s": [lasts], "error": [None]},
                **{"longest_pause_s": [0.1], "input_tokens": [8], "output_tokens": [3]},
            },
        }


def units(measuring: Measuring, **changes: Any) -> Iterator[list[MeasuredLoad]]:
    return generate_units(spec(**changes), measuring, Listener())


def test_a_block_asks_both_sides_the_same_and_each_block_something_else() -> None:
    blocks = list(islice(units(Measuring()), 8))
    for number, block in enumerate(blocks):
        assert {load.side for load in block} == {"baseline", "candidate"}
        assert len({load.seed for load in block}) == 1
        assert [load.place for load in block] == [0, 1]
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


def test_a_round_sends_its_rate_for_its_time_with_a_warm_up_before_and_after() -> None:
    measuring = Measuring()
    rate = {"rate": 2.5, "concurrency": None, "trace": False}
    (load,) = next(units(measuring, sides=("candidate",), arrivals=rate))
    assert [asked[:2] for asked in measuring.asked] == [("candidate", 13)]
    assert (load.arrivals, load.rate, load.warmup_s, load.measured_s) == ("rate", 2.5, 2, 1)


def test_a_trace_ends_where_its_round_does() -> None:
    measuring = Measuring()
    times = {"rate": None, "concurrency": None, "trace": True}
    next(units(measuring, sides=("candidate",), arrivals=times, times=[0, 1, 4.9, 5.1, 60]))
    assert [requests for _, requests, _ in measuring.asked] == [3]


@dataclass
class After:
    """A rule that is over after so many loads."""

    loads: int
    cap: int = 20
    unit: str = "blocks"

    def wants_more(self, loads: list[MeasuredLoad]) -> bool:
        return len(loads) < self.loads

    def state(self, loads: list[MeasuredLoad]) -> str:
        return "pass"


@pytest.mark.parametrize("loads", [2, 6])
def test_it_measures_until_the_rule_wants_no_more_and_keeps_every_load(
    tmp_path: Path, loads: int
) -> None:
    measuring = Measuring()
    facts = measure_until_decided(
        units(measuring), After(loads), "speed chat", Listener(), tmp_path
    )
    assert facts == {"units": loads // 2, "state": "pass"}
    kept = parse_loads((tmp_path / LOADS).read_text().splitlines())
    assert [load.block for load in kept] == [n for n in range(loads // 2) for _ in range(2)]
