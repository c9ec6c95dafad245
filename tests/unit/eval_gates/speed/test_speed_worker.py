from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from listener import Listener

from eval_gates.speed.load_run import LoadLog, LoadRun
from eval_gates.speed.schedule import arrival_times, draw_block, load_seed
from eval_gates.speed.speed_worker import measure_loads

RULE = {"kind": "ratio", "min_ratio": 0.5, "alpha": 0.05, "blocks": 8, "starts": "once"}
AT_RATE = {"rate": 2.5, "concurrency": None}
SIDES = {"baseline": "baseline", "fp8": "candidate", "awq": "candidate"}


def spec(*arms: str, names: Sequence[str] = ("chat",), **workload: Any) -> dict[str, Any]:
    rule = {**RULE, "kind": "slo" if "arrivals" in workload else "ratio"}
    order, traffic = draw_block(1, 3, 1, arms or ["baseline", "fp8"])
    return {
        "arms": [
            {"arm": arm, "side": SIDES[arm], "block": 3, "server_run": 1, "order": place}
            for place, arm in enumerate(order)
        ],
        "loads": [
            {
                "name": name,
                "workload": {
                    **{"kind": "random", "input_tokens": 8, "output_tokens": 3},
                    **{"seconds": 1.0, "warmup_seconds": 2.0},
                    **{"arrivals": {"rate": None, "concurrency": 4}, **workload},
                },
                "rule": rule,
                "seed": load_seed(traffic, name if place else ""),
            }
            for place, name in enumerate(names)
        ],
    }


@dataclass
class Measuring:
    seconds: dict[str, float] = field(default_factory=dict)
    asked: list[tuple[str, int, int]] = field(default_factory=list)
    times: list[Sequence[float]] = field(default_factory=list)

    def __call__(self, arm: str, requests: int, seed: int, at: Sequence[float]) -> dict[str, Any]:
        self.times.append(at)
        self.asked.append((arm, requests, seed))
        lasts = requests * self.seconds.get(arm, 1.0)
        columns = {"ttft_s": 0.001, "error": None, "input_tokens": 8, "output_tokens": 3}
        starts = at or [lasts * (n // 4 * 4) / requests for n in range(requests)]
        each = self.seconds.get(arm, 0.1) if at else 4 * lasts / requests
        return {
            "prompts_sha256": f"{seed:064x}",
            **{"started": 1.0, "seconds": lasts, "client_lag_s": 0.0},
            "requests": {
                **{name: [value] * requests for name, value in columns.items()},
                "start_s": list(starts),
                "end_s": [start + each for start in starts],
            },
        }


def measured(folder: Path, measuring: Measuring, given: dict[str, Any]) -> list[LoadRun]:
    measure_loads(given, [measuring] * len(given["loads"]), Listener(), folder)
    return LoadLog(folder).loads()


def test_loads_have_ten_waves_at_least_and_last_where_a_server_is_fast(tmp_path: Path) -> None:
    """A short load warms each server up and says how fast it is; no load counts before."""
    for folder, seconds, workload, asked in (
        ("slow", 1.0, {}, [8, 40]),
        # 1.2 s of 1,000 a second, and 2 waves
        ("fast", 0.001, {}, [8, 1208]),
        ("natural", 1.0, {"output": "natural"}, [8, 64]),
    ):
        measuring = Measuring({"baseline": seconds})
        (tmp_path / folder).mkdir()
        measured(tmp_path / folder, measuring, spec("baseline", **workload))
        assert [requests for _, requests, _ in measuring.asked] == asked
        assert len({seed for _, _, seed in measuring.asked}) == 2


def test_a_load_at_a_rate_sends_a_drawn_number_of_requests(tmp_path: Path) -> None:
    """Answers of a second: two of them and a half more of warm-up, and ten that count."""
    measuring = Measuring({"fp8": 1.0})
    loads = measured(tmp_path, measuring, spec("fp8", arrivals=AT_RATE))
    assert measuring.times[1:] == [arrival_times(load.seed, 2.5, 21.0) for load in loads]
    assert [len(load.requests) for load in loads] == [len(each) for each in measuring.times[1:]]
    assert {(load.rate, load.warmup_s, load.measured_s) for load in loads} == {(2.5, 3, 15)}


def test_all_arms_of_a_block_are_asked_the_same_after_a_short_load(tmp_path: Path) -> None:
    measuring = Measuring({"fp8": 0.001})
    loads = measured(tmp_path, measuring, spec(*SIDES))
    assert [(load.block, load.server_run, load.order) for load in loads] == [
        (3, 1, place) for place in range(3)
    ]
    assert sorted(load.side for load in loads) == ["baseline", "candidate", "candidate"]
    assert len({(load.seed, len(load.requests)) for load in loads}) == 1
    looks = [(requests, seed) for _, requests, seed in measuring.asked[::2]]
    assert len(set(looks)) == 1
    assert looks[0][1] != loads[0].seed


def test_another_worker_of_the_block_asks_as_many(tmp_path: Path) -> None:
    """With fresh starts each arm has its own."""
    for arm, seconds in (("baseline", 1.0), ("fp8", 0.001)):
        measured(tmp_path, Measuring({arm: seconds}), spec(arm))
    assert [len(load.requests) for load in LoadLog(tmp_path).loads()] == [40, 40]


def test_each_arm_has_its_further_loads_with_other_prompts(tmp_path: Path) -> None:
    measuring = Measuring()
    loads = measured(tmp_path, measuring, spec(*SIDES, names=("chat", "single")))
    assert [load.workload for load in loads] == ["chat", "single"] * 3
    assert [load.order for load in loads] == [0, 0, 1, 1, 2, 2]
    seeds = {load.workload: load.seed for load in loads}
    assert len(set(seeds.values())) == 2
    assert len({seed for _, _, seed in measuring.asked}) == 4
