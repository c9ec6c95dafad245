"""The H100 kit, as far as a CPU can try it."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from fake_run import equal
from pretend_stages import PretendModels
from whole_run import run_of

from recipes.catalog import load_policy, load_profile

KIT = Path(__file__).parents[3] / "benchmarks/hopper"


@pytest.mark.parametrize("script", sorted(path.name for path in KIT.glob("*.sh")))
def test_script_parses(script: str) -> None:
    subprocess.run(["bash", "-n", KIT / script], check=True)


def test_plan_agrees_with_measured_h100() -> None:
    """The script exits with 1 if a planned figure is too high or more than 5 % too low."""
    done = subprocess.run([sys.executable, KIT / "planned.py"], capture_output=True, text=True)
    arms = json.loads(done.stdout.splitlines()[-1])["arms"]
    assert done.returncode == 0, done.stderr
    assert set(arms) == {"bf16", "fp8", "w4a16"}


@pytest.mark.parametrize("name", ["whole", "large", "curve"])
def test_policy_is_one_of_the_product(name: str) -> None:
    policy = load_policy(str(KIT / f"{name}.yaml"))
    assert policy.name == name
    assert policy.speed is not None


def test_profile_differs_from_h100_in_its_starts_and_memory() -> None:
    once = load_profile(str(KIT / "h100-once.yaml"))
    shipped = load_profile("h100")
    assert once.starts == "once"
    assert {**once.engine_arguments, "gpu-memory-utilization": None} == {
        **shipped.engine_arguments,
        "gpu-memory-utilization": None,
    }
    assert once.kv_cache_dtype == shipped.kv_cache_dtype


def test_stages_of_a_run_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = run_of(tmp_path, monkeypatch, PretendModels(equal, questions=96))
    samples = tmp_path / "gpu.csv"
    began = datetime.fromisoformat(report.started).astimezone()
    samples.write_text(
        "".join(
            f"{began + timedelta(seconds=second):%Y/%m/%d %H:%M:%S.%f}, 2000, 50, 300\n"
            for second in range(2)
        )
    )
    command = [sys.executable, KIT / "stages.py", tmp_path / "store", samples]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert f"run {report.run}" in done.stdout
    assert "profile cpu" in done.stdout
    assert "evaluate" in done.stdout
    for variant in report.variants:
        assert f"{variant.recipe}: {variant.verdict}" in done.stdout
