"""A real Ray cluster of three nodes on this machine, told of GPUs that are none: quick stages."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ray_nodes import RayNodes
from tiny_stages import Heard, TinyStages, wait_until, write_driver

from pipeline import __version__
from pipeline.capacity.machine import machine_of
from pipeline.core.errors import StageError, UsageError
from pipeline.core.hardware import Hardware, this_node
from pipeline.core.installation import DIGITS, PACKAGES, digest_code, this_prepare
from pipeline.core.resource_request import ResourceRequest
from pipeline.environments.settings import Settings
from pipeline.plan.resolved_options import ModelRequest, choose
from pipeline.run.executors.ray import RayExecutor, RayJob, RayPlace
from pipeline.run.serving_node import find_node

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[3]
H100 = "NVIDIA H100 80GB HBM3"
DEMO = ModelRequest(
    "demo:smollm2-135m", None, "auto", None, None, None, None, trust_remote_code=False
)
DRIVER = """
import sys
from pathlib import Path
from tiny_stages import Heard
from pipeline.core.errors import StageError
from pipeline.core.resource_request import ResourceRequest
from pipeline.run.executors.ray import RayOptions
place = RayOptions(address=sys.argv[1]).open().find_room(ResourceRequest(gpus=1))
job = place.submit(Path(sys.argv[2]), Path(sys.argv[2]).with_suffix(".log"))
try:
    job.wait(Heard())
except StageError as error:
    place.release()
    sys.exit(f"StageError: {error}")
"""


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayNodes]:
    made = RayNodes(2, driver=write_driver(tmp_path_factory.mktemp("driver")))
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def stages(tmp_path: Path) -> TinyStages:
    return TinyStages(tmp_path)


@dataclass
class Submitted:
    """A piece of work, and its room."""

    place: RayPlace
    job: RayJob

    def wait(self, heard: Heard) -> None:
        try:
            self.job.wait(heard)
        finally:
            self.place.release()


def submit(executor: RayExecutor, task: Path, **needs: Any) -> Submitted:
    place = executor.find_room(ResourceRequest(**needs))
    return Submitted(place, place.submit(task, task.with_suffix(".log")))


def test_a_stage_runs_with_the_gpus_that_it_needs(
    executor: RayExecutor, stages: TinyStages
) -> None:
    stages.let_go()
    for name, gpus, seen in (("two", 2, {"0,1"}), ("one", 1, {"0", "1"}), ("none", 0, {""})):
        task = stages.task(name)
        submit(executor, task, gpus=gpus).wait(Heard())
        assert stages.record(task) is not None
        assert stages.begun()[-1][1] in seen


def test_a_node_without_the_interpreter_finds_or_builds_its_own(
    executor: RayExecutor, stages: TinyStages
) -> None:
    task = stages.task("built", python="", environment="evaluate", accelerator="cpu")
    submit(executor, task).wait(Heard())
    assert stages.record(task) is not None
    assert stages.begun() == []


def test_room_is_what_the_nodes_have(executor: RayExecutor) -> None:
    room = [
        executor.count_room(needs)
        for needs in (
            ResourceRequest(),
            ResourceRequest(gpus=1),
            ResourceRequest(gpus=2),
            ResourceRequest(cpus="all"),
            ResourceRequest(gpus=1, exclusive=True),
            ResourceRequest(gpus=4),
        )
    ]
    assert room == [4, 4, 2, 2, 2, 0]
    with pytest.raises(UsageError, match="4 GPUs"):
        executor.find_room(ResourceRequest(gpus=4))


def test_a_run_is_laid_out_for_the_node_that_serves(executor: RayExecutor, tmp_path: Path) -> None:
    """The driver's machine has no such GPUs, and no say in the profile."""
    assert this_node().gpu_name != H100
    heard = Heard()
    node = find_node(executor, "auto", tmp_path, heard)
    assert [gpu.name for gpu in node.gpus] == [H100, H100]
    assert node.hardware("cuda") == Hardware(accelerator="cuda", gpu=H100)
    assert node.measured_on("cuda") == f"{H100}, {node.cpu}, {os.cpu_count()} cores"
    assert any(H100 in note for note in heard.notes)
    settings = Settings(home=tmp_path / "home", store=tmp_path / "store")
    choices = choose(DEMO, settings, node)
    assert choices.profile.name == "h100"
    preflight = machine_of(choices.node, settings.store, with_gpu=True)
    assert (preflight.gpu, preflight.gpus, preflight.driver) == (H100, 2, "590.44.01")


def test_a_node_says_what_it_is_while_others_have_all_its_room(
    executor: RayExecutor, stages: TinyStages, tmp_path: Path
) -> None:
    with ThreadPoolExecutor() as threads:
        try:
            works = [submit(executor, stages.task(f"n{n}"), exclusive=True) for n in range(2)]
            ends = [threads.submit(work.wait, Heard()) for work in works]
            stages.wait_begun(2)
            assert (
                executor.describe_node([ResourceRequest(gpus=2)], tmp_path, Heard()).gpu_name
                == H100
            )
        finally:
            stages.let_go()
        for end in ends:
            end.result(timeout=60)


def test_what_a_node_is_limited_to_goes_with_the_question(
    executor: RayExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREPARE_CPU_FEATURES", "none")
    assert (
        executor.describe_node([ResourceRequest(cpus="all")], tmp_path, Heard()).cpu_features == ()
    )
    with pytest.raises(UsageError, match="4 GPUs"):
        executor.describe_node([ResourceRequest(gpus=4)], tmp_path, Heard())


def test_a_measurement_has_its_node_alone(
    nodes: RayNodes, executor: RayExecutor, stages: TinyStages
) -> None:
    with ThreadPoolExecutor() as threads:
        try:
            alone = submit(executor, stages.task("alone"), gpus=1, exclusive=True)
            heard = Heard()
            ends = [threads.submit(alone.wait, heard)]
            stages.wait_begun(1)
            others = [submit(executor, stages.task(name), gpus=1) for name in ("a", "b")]
            ends += [threads.submit(other.wait, Heard()) for other in others]
            stages.wait_begun(3)
            late = submit(executor, stages.task("late"), gpus=1, exclusive=True)
            heard = Heard()
            ends.append(threads.submit(late.wait, heard))
            wait_until(lambda: heard.notes)
            assert len(stages.begun()) == 3
            assert "a separate node" in heard.notes[0]
        finally:
            stages.let_go()
        for end in ends:
            end.result(timeout=60)
    assert len(stages.begun()) == 4


def test_a_lost_node_s_stage_is_done_on_another(
    nodes: RayNodes,
    executor: RayExecutor,
    stages: TinyStages,
    capsys: pytest.CaptureFixture[str],
) -> None:
    task, heard = stages.task("lost"), Heard()
    job = submit(executor, task, gpus=1)
    with ThreadPoolExecutor() as threads:
        end = threads.submit(job.wait, heard)
        stages.wait_begun(1, end)
        wait_until(lambda: len(nodes.busy()) == 1)  # the earlier allocation is kept for a moment
        (busy,) = nodes.busy()
        nodes.kill(busy)
        try:
            stages.wait_begun(2)
        finally:
            stages.let_go()
        end.result(timeout=60)
    nodes.add()
    assert stages.record(task) is not None
    assert len(stages.begun()) == 2
    assert any("lost" in note for note in heard.notes)
    wait_until(lambda: not stages.processes())
    assert capsys.readouterr().out == ""  # which is for results


def test_cancelling_leaves_no_process(executor: RayExecutor, stages: TinyStages) -> None:
    task = stages.task("cancelled")
    work = submit(executor, task)
    with ThreadPoolExecutor() as threads:
        end = threads.submit(work.wait, Heard())
        stages.wait_begun(1, end)
        assert stages.processes()
        work.job.cancel()
        assert stages.processes() == []
        with pytest.raises(StageError):
            end.result(timeout=60)


def test_a_killed_driver_leaves_no_process(nodes: RayNodes, stages: TinyStages) -> None:
    task = stages.task("orphan")
    command = [sys.executable, "-c", DRIVER, nodes.address, str(task)]
    here = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    with subprocess.Popen(command, env=here) as driver:
        stages.wait_begun(1)
        driver.kill()
    wait_until(lambda: not stages.processes())


def test_a_node_with_other_code_of_the_same_version_is_refused(
    stages: TinyStages, tmp_path: Path
) -> None:
    checkout = tmp_path / "checkout"
    for package in PACKAGES:
        shutil.copytree(ROOT / package, checkout / package)
    with (checkout / "pipeline" / "stages" / "questions.py").open("a") as file:
        file.write("# it does something else\n")
    stages.let_go()
    code = (
        "import sys; from pathlib import Path; from tiny_stages import Heard\n"
        "from pipeline.core.errors import StageError\n"
        "from pipeline.core.resource_request import ResourceRequest\n"
        "from pipeline.run.executors.ray import RayOptions\n"
        "executor = RayOptions(address=sys.argv[1]).open(); task = Path(sys.argv[2])\n"
        "try: executor.describe_node([ResourceRequest()], task.parent, Heard())\n"
        "except StageError as error: print(error)\n"
        "executor.find_room(ResourceRequest()).submit(task, task.with_suffix('.log')).wait(Heard())"
    )
    others = RayNodes(0)
    try:
        others.add(env_vars={"PYTHONPATH": str(checkout)})
        command = [sys.executable, "-c", code, others.address, str(stages.task("other"))]
        done = subprocess.run(
            command,
            cwd=ROOT,  # from which nodes must not import
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        others.end_processes()
    theirs = f"{__version__}+code.{digest_code(checkout)[:DIGITS]}"
    for said in (done.stdout, done.stderr):
        assert f"prepare {this_prepare()} hands out" in said
        assert f"prepare {theirs} is installed here" in said
    assert stages.begun() == []


def test_no_cluster_is_told_at_once() -> None:
    with pytest.raises(UsageError) as caught:
        connect_elsewhere("127.0.0.1:9")
    assert "127.0.0.1:9" in caught.value.where


def connect_elsewhere(address: str) -> None:
    """As a process does that is connected to nothing yet."""
    code = (
        "import sys; from pipeline.run.executors.ray import RayOptions\n"
        "from pipeline.core.errors import UsageError\n"
        "try: RayOptions(address=sys.argv[1]).open()\n"
        "except UsageError as error: sys.exit(error.where)"
    )
    command = [sys.executable, "-c", code, address]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    raise UsageError("no cluster", where=answer.stderr)
