"""Real schedulers start the copies of a run (`--on`), and a node is lost in the middle."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from quiz_policy import quiz_policy
from ray_nodes import RayNodes
from slurm_nodes import SlurmNodes, processes_on, wait_until
from store_processes import left_after

pytestmark = pytest.mark.e2e
NAME, SECRET = "MLFLOW_TRACKING_TOKEN", "s3cret-of-the-registry"
PREPARE = [sys.executable, "-P", "-m", "prepare"]


def run_on(
    engine: str,
    folder: Path,
    variables: Mapping[str, str],
    settings: Mapping[str, Any],
    lose: Callable[[], None],
) -> Path:
    """Run the demo, lose a node once the variant is made, and return the store.

    Raises:
        AssertionError: it failed, or a copy that does not promote had the registry's credential.
    """
    store, file = folder / "store", folder / "settings.yaml"
    file.write_text(json.dumps(settings))
    command = ["--settings", str(file), "model", "demo:smollm2-135m", "--profile", "cpu"]
    command += ["--recipe", "fp8-dynamic", "--policy", quiz_policy(folder), "--store", str(store)]
    command += ["--run", "nightly", "--on", engine, "--copies", "2"]
    seen: dict[str, set[bool]] = {"0": set(), "1": set()}
    with (
        (folder / "out.log").open("wb") as log,
        subprocess.Popen(
            [*PREPARE, *command], stdout=log, stderr=log, env={**variables, NAME: SECRET}
        ) as process,
    ):
        while process.poll() is None and not list(store.glob("stages/quantize/*/stage.json")):
            note_credentials(store, seen)
            time.sleep(1)
        lose()
        code = process.wait()
    assert code == 0, (folder / "out.log").read_text()[-4000:]
    assert seen == {"0": {True}, "1": {False}}
    return store


def note_credentials(store: Path, seen: dict[str, set[bool]]) -> None:
    """Add whether each copy's own process has the registry's credential."""
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if b"prepare" in words[:5] and os.fsencode(store) in words:
                given = (entry / "environ").read_bytes().split(b"\0")
                for index, found in seen.items():
                    if f"PREPARE_COPY={index}".encode() in given:
                        found.add(f"{NAME}={SECRET}".encode() in given)


def check(store: Path) -> None:
    """What a run left, although a node was lost."""
    report = json.loads((store / "runs" / "nightly" / "run.json").read_text())
    assert [(v["recipe"], v["verdict"], v["promoted"]) for v in report["variants"]] == [
        ("fp8-dynamic", "pass", True)
    ]
    assert not list(store.glob("stages/*/*.partial"))
    told = (path.read_bytes() for path in (store / "runs").rglob("*") if path.is_file())
    assert not any(SECRET.encode() in content for content in told)
    assert left_after(store, 60) == []


@pytest.mark.timeout(3000)
def test_slurm_starts_the_copies_of_a_lost_node_again(slurm: SlurmNodes, tmp_path: Path) -> None:
    def lose() -> None:
        slurm.kill("n2")
        wait_until(lambda: any(state.startswith("down") for state in slurm.states()))
        slurm.start("n2")

    settings = {"slurm": {"flags": ["--cpus-per-task=2", "--time=60"]}}
    store = run_on("slurm", tmp_path, slurm.environment(), settings, lose)
    check(store)


@pytest.mark.timeout(3000)
def test_slurms_copy_of_a_node_that_was_cut_off_works_next_to_its_successor(
    slurm: SlurmNodes, tmp_path: Path
) -> None:
    """The node has the copy that promotes; its servers stay up, unseen by the controller."""
    still_working = []

    def lose() -> None:
        slurm.cut_off("n1")
        wait_until(lambda: any(state.startswith("down") for state in slurm.states()))
        still_working.append(len(processes_on("n1")))
        slurm.start("n1")

    settings = {"slurm": {"flags": ["--cpus-per-task=2", "--time=60"]}}
    store = run_on("slurm", tmp_path, slurm.environment(), settings, lose)
    assert still_working[0] > 0
    check(store)


@pytest.mark.timeout(3000)
def test_ray_starts_the_copies_of_a_lost_node_again(ray_nodes: RayNodes, tmp_path: Path) -> None:
    def lose() -> None:
        ray_nodes.kill(next(iter(ray_nodes.raylets().values())))
        ray_nodes.add()

    settings = {"ray": {"address": ray_nodes.address, "gpus": 0, "cpus": 2}}
    store = run_on("ray", tmp_path, dict(os.environ), settings, lose)
    check(store)
