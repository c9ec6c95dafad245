"""The shipped benchmark runs, and its vectorised Tango statistic is the gate's own bound."""

import importlib.util
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from eval_gates.statistics.paired import normal_quantile, tango_interval

SCRIPT = Path(__file__).parents[4] / "benchmarks" / "gate_power.py"


def test_its_statistic_crosses_where_tangos_bound_does() -> None:
    spec = importlib.util.spec_from_file_location("gate_power", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["gate_power"] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules["gate_power"]
    quantile = normal_quantile(0.05)
    sides = set()
    for questions, gains, losses in [
        (64, 0, 0), (300, 0, 0), (300, 9, 1), (300, 1, 9), (300, 0, 20), (1000, 10, 10),
        (1000, 3, 6), (1000, 30, 30), (1000, 10, 45), (14042, 140, 230), (14042, 140, 340),
    ]:  # fmt: skip
        statistic = module.score_statistic(np.array(gains), np.array(losses), questions)
        same = questions - gains - losses
        interval = tango_interval(same, losses, gains, 0, 0.05)
        assert (statistic > quantile) == (interval.lower > -0.01)
        assert (statistic < -quantile) == (interval.upper < -0.01)
        sides.add(int(statistic > quantile) - int(statistic < -quantile))
    assert sides == {-1, 0, 1}


@pytest.mark.parametrize("flag", ["--help", "--replays=1"])
def test_it_says_how_it_is_used(flag: str) -> None:
    run = subprocess.run(
        [sys.executable, str(SCRIPT), flag], capture_output=True, text=True, check=False
    )
    assert run.returncode == (0 if flag == "--help" else 2)
    assert "--replays" in run.stdout + run.stderr


def test_its_last_line_is_json() -> None:
    run = subprocess.run(
        [sys.executable, str(SCRIPT), "--replays", "16"],
        capture_output=True,
        text=True,
        check=False,
    )
    figures = json.loads(run.stdout.splitlines()[-1])
    assert run.returncode == (0 if figures["targets_met"] else 1)
    for flips in ("2 % flips", "6 % flips"):
        ours, naive = figures[flips]["ours, population"], figures[flips]["naive peeking"]
        assert 2 < ours["times_fewer_than_fixed_n"] < 20
        assert naive["questions"] < ours["questions"] < 14_042
        assert math.isfinite(ours["false_promotes_standard_error"])
