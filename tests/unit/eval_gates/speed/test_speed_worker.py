from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from listener import Listener

from eval_gates.speed.load_run import LoadLog, LoadRun
from eval_gates.speed.schedule import arrival_times, draw_block
from eval_gates.speed.speed_worker import measure_loads

RULE = {"kind": "ratio", "min_ratio": 0.5, "alpha": 0.05, "blocks": 8, "starts": "once"}
AT_RATE = {"rate": 2.5, "concurrency": None}


def spec(start: dict[str, Any] | None = None, **workload: Any) -> dict[str, Any]:
    rule = {**RULE, "kind": "slo" if "arrivals" in workload else "ratio"}
    return {
        "name": "chat",
        "workload": {
            **{"kind": "random", "input_tokens": 8, "output_tokens": 3},
            **{"seconds": 1.0, "warmup_seconds": 2.0},
            **{"arrivals": {"rate": None, "concurrency": 4}, **workload},
        },
        "rule": rule,
        "start": start or {"seed": 1, "server_run": 0},
    }


@dataclass
class Measuring:
    seconds: dict[str, float] = field(default_factory=dict)
    asked: list[tuple[str, int, int]] = field(default_factory=list)
    times: list[Sequence[float]] = field(default_factory=list)

    def __call__(self, side: str, requests: int, seed: int, at: Sequence[float]) -> dict[str, Any]:
        self.times.append(at)
        self.asked.append((side, requests, seed))
        lasts = requests * self.seconds.get(side, 1.0)
        columns = {"ttft_s": 0.001, "error": None, "input_tokens": 8, "output_tokens": 3}
        starts = at or [lasts * (n // 4 * 4) / requests for n in range(requests)]
        each = self.seconds.get(side, 0.1) if at else 4 * lasts / requests
        return {
            "prompts_sha256": f"{seed:064x}",
            **{"started": 1.0, "seconds": lasts, "client_lag_s": 0.0},
            "requests": {
                **{name: [value] * requests for name, value in columns.items()},
                "start_s": list(starts),
                "end_s": [start + each for start in starts],
            },
        }


def measured(
    folder: Path, measuring: Measuring, given: dict[str, Any] | None = None
) -> list[LoadRun]:
    measure_loads(given or spec(), measuring, Listener(), folder)
    return LoadLog(folder).loads()


def test_a_block_asks_both_sides_the_same_and_each_block_something_else(tmp_path: Path) -> None:
    loads = measured(tmp_path, Measuring())
    blocks = [loads[at : at + 2] for at in range(0, 16, 2)]
    assert len(loads) == 16
    for number, block in enumerate(blocks):
        assert {load.side for load in block} == {"baseline", "candidate"}
        assert len({load.seed for load in block}) == 1
        assert [load.order for load in block] == [0, 1]
        assert {load.block for load in block} == {number}
    assert len({block[0].seed for block in blocks}) == 8
    assert {block[0].side for block in blocks} == {"baseline", "candidate"}  # a coin, not an order


def test_loads_have_ten_waves_at_least_and_last_where_a_server_is_fast(tmp_path: Path) -> None:
    """One short load a side warms it up and says how fast it is; no load counts before."""
    for folder, seconds, workload, asked in (
        ("slow", {}, {}, [8, 8, 40, 40]),
        # 1.2 s of 1,000 a second, and 2 waves
        ("fast", {"candidate": 0.001}, {}, [8, 8, 1208, 1208]),
        ("natural", {}, {"output": "natural"}, [8, 8, 64, 64]),
    ):
        measuring = Measuring(seconds)
        (tmp_path / folder).mkdir()
        measured(tmp_path / folder, measuring, spec(**workload))
        assert [requests for _, requests, _ in measuring.asked[:4]] == asked
        assert len({seed for _, _, seed in measuring.asked}) == 9


def test_a_load_at_a_rate_sends_a_drawn_number_of_requests(tmp_path: Path) -> None:
    """Answers of a second: two of them and a half more of warm-up, and ten that count."""
    measuring = Measuring({"candidate": 1.0})
    loads = measured(tmp_path, measuring, spec(arrivals=AT_RATE))
    assert measuring.times[1:] == [arrival_times(load.seed, 2.5, 21.0) for load in loads]
    assert [len(load.requests) for load in loads] == [len(each) for each in measuring.times[1:]]
    assert {(load.rate, load.warmup_s, load.measured_s) for load in loads} == {(2.5, 3, 15)}


def test_another_life_goes_on_with_other_prompts_and_warms_up_first(tmp_path: Path) -> None:
    first, second = Measuring(), Measuring()
    before = measured(tmp_path, first)
    LoadLog(tmp_path).cut(14)
    loads = measured(tmp_path, second, spec({"seed": 1, "server_run": 1}))
    assert loads[:14] == before[:14]
    assert [(load.block, load.server_run) for load in loads[12::2]] == [(6, 0), (7, 1)]
    seeds = [{seed for _, _, seed in each.asked} for each in (first, second)]
    assert seeds[0].isdisjoint(seeds[1])
    assert len(second.asked) == 4  # a look a side, and a block


def fresh(folder: Path, measuring: Measuring, *sides: str, **workload: Any) -> list[LoadRun]:
    _, seed = draw_block(1, 3, 1, sides)
    for order, side in enumerate(sides):
        start = {"side": side, "block": 3, "server_run": 1, "order": order, "seed": seed}
        measured(folder, measuring, spec(start, **workload))
    return LoadLog(folder).loads()


def test_all_arms_of_a_block_are_asked_the_same_after_a_short_load(tmp_path: Path) -> None:
    measuring = Measuring({"candidate": 0.001})
    loads = fresh(tmp_path, measuring, "baseline", "candidate", "candidate")
    assert [(load.block, load.server_run, load.order) for load in loads] == [
        (3, 1, place) for place in range(3)
    ]
    assert len({(load.seed, len(load.requests)) for load in loads}) == 1
    looks = [(requests, seed) for _, requests, seed in measuring.asked[::2]]
    assert len(set(looks)) == 1
    assert looks[0][1] != loads[0].seed
