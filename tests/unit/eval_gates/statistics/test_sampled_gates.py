"""The benchmark of gates on repeated samples and grouped tasks; some of its rows, briefly."""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[4] / "benchmarks" / "sampled_gates.py"
REPLAYS = 100


@pytest.fixture(scope="module")
def benchmark() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("sampled_gates", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["sampled_gates"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["sampled_gates"]


def test_every_variant_loses_exactly_what_it_is_said_to_lose(benchmark: ModuleType) -> None:
    for scenario in benchmark.SCENARIOS[::4]:
        for drop in (0.0, scenario.margin):
            population = benchmark.build_population(scenario, drop, 1)
            lost = population.before.mean() - population.after.mean()
            assert lost == pytest.approx(drop, abs=1e-9), scenario.name
            assert population.after.min() >= 0
            assert population.after.max() <= 1


@pytest.mark.parametrize("row", ["k = 64, 50 % solved, some lost", "14 tasks, k = 1, one task"])
def test_a_lost_margin_rarely_passes(benchmark: ModuleType, row: str) -> None:
    (scenario,) = (each for each in benchmark.SCENARIOS if each.name == row)
    passes = benchmark.measure(scenario, scenario.margin, REPLAYS, 7)
    assert max(passes.values()) <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / REPLAYS)
    assert min(benchmark.measure(scenario, 0.0, REPLAYS, 7).values()) > 0.5
