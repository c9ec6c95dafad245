"""How much starts of servers differ, from what a store has measured."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asked_run import request_for
from finished_stage import put_record, stage_record
from sample_stages import PARAMETERS

from pipeline.core.hardware import this_node
from pipeline.core.store import Store
from pipeline.environments.settings import Settings
from pipeline.plan.resolved_options import choose
from pipeline.plan.start_spread import spread_of_starts, with_measured_spread
from pipeline.stages.attempts import StartSpread
from recipes.catalog import load_profile

SPEED = PARAMETERS["speed"]


def measured(number: int, rates: dict[str, list[float]], **parameters: Any) -> Any:
    return stage_record(
        stage="speed",
        key=f"{number:064x}",
        parameters={
            **{"name": "chat", "workload": {}, "rule": SPEED["rule"], "machine": "here"},
            "sides": {side: {"checkpoint": side} for side in rates},
            **parameters,
        },
        result={
            **{"units": 12, "state": "pass", "seed": number, "server_runs": 1, "loads_digest": ""},
            "log_rates": rates,
        },
    )


def test_starts_of_one_server_scatter_by_what_was_measured() -> None:
    """Each baseline around its own speed; the variants were started once each."""
    chance = np.random.default_rng(5)
    records = [
        measured(
            number,
            {"baseline": [float(chance.normal(number % 2, 0.03))], "candidate": [9.0]},
            name=f"chat{number % 2}",
            workload={"of": number % 2},
            sides={
                "baseline": {"checkpoint": "model"},
                "candidate": {"checkpoint": f"variant {number}"},
            },
        )
        for number in range(60)
    ]
    found = spread_of_starts(records, "here")
    assert found is not None
    assert found.stddev == pytest.approx(0.03, abs=0.0101)
    assert found.starts == 50  # 58 degrees of freedom, rounded down
    assert spread_of_starts(records, "elsewhere") is None


def test_few_starts_are_no_measurement() -> None:
    records = [measured(number, {"baseline": [0.01 * number]}) for number in range(10)]
    assert spread_of_starts(records[:9], "here") is None
    found = spread_of_starts(records, "here")
    assert found is not None
    assert found.stddev == pytest.approx(math.ceil(0.0303 / 0.005) * 0.005)
    assert found.starts == 10
    assert spread_of_starts([*records, stage_record(stage="speed")], "here") == found


def test_a_profile_takes_it_in_the_place_of_what_is_assumed() -> None:
    spread = StartSpread(stddev=0.3, starts=10)
    cpu, gpu = load_profile("cpu"), load_profile("h100")
    found = with_measured_spread(cpu, spread)
    assert (found.restart_stddev, found.restart_count) == (0.3, 10)
    assert with_measured_spread(cpu, None) is cpu
    own = cpu.model_copy(update={"restart_stddev": 0.01})
    assert with_measured_spread(own, spread) is own
    assert with_measured_spread(gpu, spread) is gpu  # whose starts are what it measures


@pytest.mark.usefixtures("programs")
def test_a_run_is_chosen_with_it(settings: Settings, tmp_path: Path) -> None:
    assert choose(request_for("org/model"), settings).measuring_profile.restart_stddev == 0.02
    machine = this_node().measured_on("cpu")
    for number in range(10):
        record = measured(number, {"baseline": [0.1 * number]}, machine=machine)
        put_record(Store(settings.store), record)
    chosen = choose(request_for("org/model"), settings)
    assert chosen.measuring_profile.restart_count == 10
    assert chosen.profile.restart_stddev == 0.02
