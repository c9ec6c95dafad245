"""Real schedulers start the copies of a run (`--on`), and a node is lost in the middle."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from ray_nodes import RayNodes
from slurm_nodes import SlurmNodes
from store_processes import left_after

pytestmark = pytest.mark.e2e
PREPARE = [sys.executable, "-P", "-m", "pipeline.cli.main"]
POLICY = """
name: on-a-cluster
summary: few easy questions and a wide margin
alpha: 0.05
suites:
  quiz:
    kind: mmlu
    prompt_format: cloze
    num_fewshot: 0
    questions: 64
    margins: {fp8: 0.25}
    sources: [builtin]
promotion:
  prefer: smallest
"""


def run_on(
    engine: str,
    folder: Path,
    variables: Mapping[str, str],
    settings: Mapping[str, Any],
    lose: Callable[[], None],
) -> tuple[int, Path]:
    """Run the demo; lose a node once the baseline's server is starting; its code and the store."""
    store, policy, file = folder / "store", folder / "policy.yaml", folder / "settings.yaml"
    policy.write_text(POLICY)
    file.write_text(json.dumps(settings))
    command = ["--settings", str(file), "model", "demo:smollm2-135m", "--profile", "cpu"]
    command += ["--recipe", "fp8-dynamic", "--policy", str(policy), "--store", str(store)]
    command += ["--run", "nightly", "--on", engine, "--copies", "2"]
    secret = {"MLFLOW_TRACKING_TOKEN": "s3cret-of-the-registry"}
    with (
        (folder / "out.log").open("wb") as log,
        subprocess.Popen(
            [*PREPARE, *command], stdout=log, stderr=log, env={**variables, **secret}
        ) as process,
    ):
        while process.poll() is None and not list(store.glob("stages/quantize/*/stage.json")):
            time.sleep(1)
        lose()
        code = process.wait()
    assert code == 0, (folder / "out.log").read_text()[-4000:]
    return code, store


def check(store: Path) -> None:
    """What a run left, although a node was lost."""
    report = json.loads((store / "runs" / "nightly" / "run.json").read_text())
    assert [(v["recipe"], v["verdict"], v["promoted"]) for v in report["variants"]] == [
        ("fp8-dynamic", "pass", True)
    ]
    assert not list(store.glob("stages/*/*.partial"))
    assert left_after(store, 60) == []


@pytest.mark.timeout(3000)
def test_slurm_starts_the_copies_of_a_lost_node_again(slurm: SlurmNodes, tmp_path: Path) -> None:
    def lose() -> None:
        slurm.kill("n2")
        time.sleep(15)  # until the controller notices
        slurm.start("n2")

    settings = {"slurm": {"flags": ["--cpus-per-task=2", "--time=60"]}}
    _, store = run_on("slurm", tmp_path, slurm.environment(), settings, lose)
    check(store)


@pytest.mark.timeout(3000)
def test_ray_starts_the_copies_of_a_lost_node_again(ray_nodes: RayNodes, tmp_path: Path) -> None:
    def lose() -> None:
        ray_nodes.kill(next(iter(ray_nodes.raylets().values())))
        ray_nodes.add()

    settings = {"ray": {"address": ray_nodes.address, "gpus": 0, "cpus": 2}}
    _, store = run_on("ray", tmp_path, dict(os.environ), settings, lose)
    check(store)
