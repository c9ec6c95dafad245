"""A real Slurm of two nodes on this machine, with faked GPUs: quick stages as its jobs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from slurm_nodes import SlurmNodes, missing, node_of
from tiny_stages import Heard, TinyStages, wait_until, write_driver

from pipeline.core.errors import EvaluationDataError, StageError, UsageError
from pipeline.core.hardware import this_node
from pipeline.core.resource_request import ResourceRequest
from pipeline.core.run_folders import RUN_RECORD, RunFolders
from pipeline.run.executors.slurm import (
    VISIBILITY_TIMEOUT_S,
    SlurmExecutor,
    SlurmJob,
    SlurmOptions,
    ask,
)
from pipeline.run.serving_node import find_node

pytestmark = [pytest.mark.e2e, pytest.mark.of_everything, pytest.mark.timeout(300)]


@pytest.fixture
def executor(slurm: SlurmNodes, monkeypatch: pytest.MonkeyPatch) -> SlurmExecutor:
    monkeypatch.setenv("SLURM_CONF", str(slurm.configuration))
    return SlurmOptions(partition="all", gpu_kind="h100", time="10").open()


@pytest.fixture
def stages(tmp_path: Path) -> TinyStages:
    return TinyStages(tmp_path)


def submit(executor: SlurmExecutor, task: Path, **needs: Any) -> SlurmJob:
    return executor.find_room(ResourceRequest(**needs)).submit(task, task.with_suffix(".log"))


def test_a_stage_runs_with_the_gpus_that_it_needs(
    executor: SlurmExecutor, stages: TinyStages
) -> None:
    stages.let_go()
    for name, gpus, seen in (("two", 2, {"0,1"}), ("one", 1, {"0", "1"}), ("none", 0, {""})):
        task = stages.task(name)
        submit(executor, task, gpus=gpus).wait(Heard())
        assert stages.record(task) is not None
        assert stages.begun()[-1][1] in seen


def test_its_own_error_arrives_as_what_it_is(executor: SlurmExecutor, stages: TinyStages) -> None:
    stages.let_go()
    task = stages.task("wrong", folder=str(stages.folder / "none"))
    task.write_text(task.read_text().replace('"builtin"', '"folder"'))
    with pytest.raises(EvaluationDataError):
        submit(executor, task).wait(Heard())


def test_room_is_what_the_nodes_have(executor: SlurmExecutor) -> None:
    asked = (
        ResourceRequest(),
        ResourceRequest(gpus=1),
        ResourceRequest(gpus=2),
        ResourceRequest(cpus="all"),
        ResourceRequest(gpus=1, exclusive=True),
        ResourceRequest(gpus=4),
    )
    assert [executor.count_room(needs) for needs in asked] == [4, 4, 2, 2, 2, 0]
    with pytest.raises(UsageError, match="4 GPUs"):
        executor.find_room(ResourceRequest(gpus=4))


def test_a_job_says_what_its_node_is(
    executor: SlurmExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two GPUs are asked for; outside of a job there are none, as on a login node."""
    driver = write_driver(tmp_path, '[ -n "$SLURM_JOB_ID" ]')
    monkeypatch.setenv("PATH", f"{driver}:{os.environ['PATH']}")
    assert this_node().gpus == ()
    store = tmp_path / "store"
    node = find_node(executor, "auto", store, Heard())
    assert {gpu.name for gpu in node.gpus} == {"NVIDIA H100 80GB HBM3"}
    assert node.measured_on("cuda").startswith("NVIDIA H100 80GB HBM3, ")
    assert list(store.iterdir()) == []
    with pytest.raises(UsageError, match="4 GPUs"):
        executor.describe_node([ResourceRequest(gpus=4)], store, Heard())


def test_a_partition_that_there_is_not(executor: SlurmExecutor) -> None:
    with pytest.raises(UsageError, match="partition"):
        SlurmOptions(partition="moon").open().find_room(ResourceRequest())


def test_a_measurement_has_its_node_alone(executor: SlurmExecutor, stages: TinyStages) -> None:
    with ThreadPoolExecutor() as threads:
        try:
            jobs = [submit(executor, stages.task(f"alone{n}"), exclusive=True) for n in range(2)]
            ends = [threads.submit(job.wait, Heard()) for job in jobs]
            stages.wait_begun(2)
            heard = Heard()
            ends.append(threads.submit(submit(executor, stages.task("late")).wait, heard))
            wait_until(lambda: heard.notes)
            assert len(stages.begun()) == 2
            assert sorted(map(node_of, jobs)) == ["n1", "n2"]
            assert "PENDING" in heard.notes[0]
        finally:
            stages.let_go()
        for end in ends:
            end.result(timeout=100)


def test_a_lost_node_s_job_is_done_on_another(
    slurm: SlurmNodes, executor: SlurmExecutor, stages: TinyStages
) -> None:
    task, heard = stages.task("lost"), Heard()
    job = submit(executor, task, gpus=1)
    with ThreadPoolExecutor() as threads:
        end = threads.submit(job.wait, heard)
        stages.wait_begun(1, end)
        first = node_of(job)
        slurm.kill(first)
        try:
            wait_until(lambda: len(stages.begun()) == 2, 200)
            assert node_of(job) != first
        finally:
            stages.let_go()
        end.result(timeout=60)
    slurm.start(first)
    assert stages.record(task) is not None
    assert any("requeued" in note for note in heard.notes)
    wait_until(lambda: slurm.states() == ["idle", "idle"])


def test_a_requeued_job_goes_on(executor: SlurmExecutor, stages: TinyStages) -> None:
    task, heard = stages.task("requeued"), Heard()
    job = submit(executor, task)
    with ThreadPoolExecutor() as threads:
        end = threads.submit(job.wait, heard)
        stages.wait_begun(1, end)
        ask("scontrol", "requeue", job.number)
        try:
            wait_until(lambda: len(stages.begun()) == 2, 200)
        finally:
            stages.let_go()
        end.result(timeout=60)
    assert stages.record(task) is not None


def test_cancelling_leaves_no_process(executor: SlurmExecutor, stages: TinyStages) -> None:
    job = submit(executor, stages.task("cancelled"))
    with ThreadPoolExecutor() as threads:
        end = threads.submit(job.wait, Heard())
        stages.wait_begun(1, end)
        assert stages.processes()
        job.cancel()
        wait_until(lambda: not stages.processes(), 10)
        with pytest.raises(StageError):
            end.result(timeout=60)


def test_a_job_that_somebody_ends_is_told_with_its_state(
    executor: SlurmExecutor, stages: TinyStages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.run.executors.slurm.VISIBILITY_TIMEOUT_S", 1)
    job = submit(executor, stages.task("ended"))
    with ThreadPoolExecutor() as threads:
        end = threads.submit(job.wait, Heard())
        stages.wait_begun(1, end)
        ask("scancel", job.number)
        with pytest.raises(StageError, match=f"job {job.number}"):
            end.result(timeout=100)


def test_nothing_is_removed_beside_a_job_whose_driver_is_gone(
    executor: SlurmExecutor, stages: TinyStages
) -> None:
    run = RunFolders(stages.store).make("of-a-killed-driver")
    (run / RUN_RECORD).write_text("{}")
    (run / "stages").mkdir()
    task = run / "stages" / "kept.json"
    stages.task("kept").rename(task)
    job = submit(executor, task)
    gc = [sys.executable, "-P", "-m", "pipeline.cli.main", "gc", "--older-than", "0", "--store"]

    def collect() -> int:
        return subprocess.run([*gc, str(stages.store.root)], check=False).returncode

    with ThreadPoolExecutor() as threads:
        end = threads.submit(job.wait, Heard())
        stages.wait_begun(1, end)
        try:
            assert collect() == 1
        finally:
            stages.let_go()
        end.result(timeout=60)
    assert stages.record(task) is not None
    assert collect() == 0
    assert stages.record(task) is None  # there was nobody to keep it for


@pytest.fixture(scope="module")
def unlike(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmNodes]:
    """Nodes with GPUs of two kinds, which share not all folders."""
    if reason := missing():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("unlike")
    (folder / "own").mkdir()
    (folder / "slurm").mkdir()
    made = SlurmNodes(folder / "slurm", kinds=("h100", "a100"), own=folder / "own")
    try:
        yield made
    finally:
        made.close()


def test_nodes_that_do_not_share_the_store_are_refused_at_once(
    unlike: SlurmNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CONF", str(unlike.configuration))
    store, began = unlike.folder.parent / "own/store", time.monotonic()
    with pytest.raises(UsageError) as caught:
        find_node(SlurmOptions().open(), "cpu", store, Heard())
    assert caught.value.where.startswith(str(store))
    assert "nodes" in caught.value.hint
    assert time.monotonic() - began < VISIBILITY_TIMEOUT_S


def test_what_serves_goes_to_nodes_of_one_kind(
    unlike: SlurmNodes, stages: TinyStages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CONF", str(unlike.configuration))
    executor = SlurmOptions().open()
    assert [executor.count_room(ResourceRequest(gpus=n)) for n in (0, 1, 2)] == [4, 2, 1]
    with ThreadPoolExecutor() as threads:
        try:
            served = [submit(executor, stages.task(f"serve{n}"), gpus=1) for n in range(3)]
            light = submit(executor, stages.task("light"))
            a100 = submit(SlurmOptions(gpu_kind="a100").open(), stages.task("a100"), gpus=1)
            ends = [threads.submit(job.wait, Heard()) for job in (*served, light, a100)]
            stages.wait_begun(4)
            assert [node_of(job) for job in served] == ["n1", "n1", ""]
            assert [node_of(job) for job in (light, a100)] == ["n2", "n2"]
        finally:
            stages.let_go()
        for end in ends:
            end.result(timeout=100)
    chosen = SlurmOptions(flags=["--nodelist=n2"]).open()
    last = submit(chosen, stages.task("chosen"), gpus=2)
    assert ask("squeue", f"--jobs={last.number}", "--noheader", "--format=%n").strip() == "n2"
    last.wait(Heard())
