"""What every executor must do with work, and how settings choose one.

Stages are real: `adopt` (a small hand-made checkpoint) and `questions` (through a real
worker, the carried texts). Slurm's commands are played by scripts, and Ray has one real node.
Kills, several nodes and a real Slurm are in tests/e2e/cluster. A stage that waits for its store
lock is one that can be killed at leisure; only the local executor and its like see that.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from listener import Listener
from loose_stage import stage_spec
from played_slurm import play_slurm
from quantized_checkpoint import inspected
from small_checkpoint import checkpoint_files, write_files

from eval_gates.suites.rouge import RougeTask
from pipeline.core.digest import digest_bytes
from pipeline.core.errors import (
    EvaluationDataError,
    InternalStageError,
    PrepareError,
    StageError,
    UsageError,
    WorkerError,
)
from pipeline.core.resource_request import ResourceRequest
from pipeline.core.stage_record import StageSpec
from pipeline.core.store import Store
from pipeline.environments.settings import Settings, load_settings
from pipeline.run.executors import Allocation, Executor, executor_of
from pipeline.run.executors.local import LocalExecutor

SUITE = RougeTask()


class Run:
    """A store, and a folder for the specs and logs of what is submitted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = Store(folder / "store")
        self.log = folder / "stage.log"
        self.spec_file = folder / "stage.json"
        self.listener = Listener()
        self.executor: Executor = LocalExecutor()

    def adopt(self) -> StageSpec:
        """The stage that copies a checkpoint's files and checks their digests."""
        files = checkpoint_files()
        write_files(self.weights, files)
        return stage_spec(
            "adopt",
            "theirs",
            {
                "checkpoint": "c" * 64,
                "quantization": {"kind": "none"},
                "environment": "",
                "files": {name: digest_bytes(content) for name, content in files.items()},
                "copied": True,
            },
            {},
            {"folder": str(self.weights)},
            self.store.root,
        )

    @property
    def weights(self) -> Path:
        return self.folder / "theirs"

    def questions(self, source: dict[str, Any], **runtime: str) -> StageSpec:
        """The stage that lays out five documents to summarize."""
        parameters = {"suite": SUITE.model_dump(), "source": source, "seed": 1}
        return stage_spec(
            "questions",
            "rouge",
            parameters,
            {},
            {"python": sys.executable, **runtime},
            self.store.root,
        )

    def submit(self, spec: StageSpec) -> Any:
        self.spec_file.write_text(spec.model_dump_json())
        return self.place().submit(self.spec_file, self.log)

    def place(self) -> Allocation:
        found = self.executor.find_room(ResourceRequest())
        assert found is not None
        return found

    def failure(self, spec: StageSpec) -> PrepareError:
        with pytest.raises(PrepareError) as caught:
            self.submit(spec).wait(self.listener)
        assert self.store.find(spec.stage, spec.key) is None
        return caught.value

    def processes(self) -> dict[int, bytes]:
        """Running processes that were given our spec file, by id: guard and stage."""
        found = {}
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if os.fsencode(self.spec_file) in command:
                found[int(entry.name)] = command
        return found

    @contextmanager
    def waiting(self, spec: StageSpec) -> Iterator[tuple[Any, int]]:
        """The job of a stage that another has claimed, and the stage's own process id."""
        with self.store.hold(spec.key):
            job = self.submit(spec)
            deadline = time.monotonic() + 20
            stages: list[int] = []
            while not stages:
                assert time.monotonic() < deadline
                running = self.processes().items()
                stages = [pid for pid, line in running if b"supervisor.py" not in line]
                time.sleep(0.02)
            yield job, stages[0]


@pytest.fixture(scope="module")
def ray_address() -> Iterator[str]:
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    variables = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        needs = {"num_cpus": 2, "object_store_memory": 80 * 2**20}
        cluster = cluster_utils.Cluster(initialize_head=True, head_node_args=needs)
        yield cluster.address
        import ray

        ray.shutdown()
        cluster.shutdown()


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """On the local executor."""
    return Run(tmp_path)


@pytest.fixture(params=["local", "slurm", "ray"])
def anywhere(
    request: pytest.FixtureRequest, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Run:
    """On each executor."""
    keys = {"kind": request.param}
    if request.param == "slurm":
        play_slurm(tmp_path / "slurm", monkeypatch)
    elif request.param == "ray":
        keys["address"] = request.getfixturevalue("ray_address")
    settings = Settings(home=tmp_path / "home", store=tmp_path / "store", executor=keys)
    run.executor = executor_of(settings)
    return run


def test_room_and_node(anywhere: Run) -> None:
    executor, needs = anywhere.executor, ResourceRequest()
    assert executor.count_room(needs) >= 1
    assert executor.count_room(ResourceRequest(gpus=1000)) == 0
    with pytest.raises(UsageError):
        executor.find_room(ResourceRequest(gpus=1000))
    allocation = anywhere.place()
    allocation.release()
    allocation.release()


def test_a_stage_runs_into_the_store_and_its_events_arrive(anywhere: Run) -> None:
    spec = anywhere.adopt()
    anywhere.submit(spec).wait(anywhere.listener)
    record = anywhere.store.find("adopt", spec.key)
    assert record is not None
    assert record.result["weights_bytes"] == len(checkpoint_files()["model.safetensors"])
    total = len(checkpoint_files())
    assert len(anywhere.listener.events) == total + 1
    assert anywhere.listener.events[-1] == ("theirs: adopt", total, total, "files")
    assert anywhere.processes() == {}


def test_a_worker_in_an_interpreter_of_its_own(anywhere: Run) -> None:
    spec = anywhere.questions({"kind": "builtin"})
    anywhere.submit(spec).wait(anywhere.listener)
    record = anywhere.store.find("questions", spec.key)
    assert record is not None
    assert record.result["questions"] == 64
    assert record.peak_memory_bytes is not None
    assert record.peak_memory_bytes > 1_000_000
    folder = anywhere.store.stage_folder("questions", spec.key)
    assert len((folder / "questions.jsonl").read_text().splitlines()) == 64


def test_a_stage_that_is_done_is_not_run_again(anywhere: Run) -> None:
    spec = anywhere.adopt()
    for _ in range(2):
        anywhere.submit(spec).wait(anywhere.listener)
    assert len(anywhere.listener.events) == len(checkpoint_files()) + 1


def test_a_stages_own_error_comes_back_as_its_class(anywhere: Run) -> None:
    spec = anywhere.adopt()
    (anywhere.weights / "config.json").write_text("{}")
    error = anywhere.failure(spec)
    assert type(error) is StageError
    assert error.message == "a file of the weights changed while it was read"
    assert error.where == str(anywhere.weights / "config.json")
    assert "prepare pull" in error.hint


def test_a_workers_own_error_crosses_two_processes(anywhere: Run) -> None:
    empty = anywhere.folder / "eval-data"
    empty.mkdir()
    error = anywhere.failure(anywhere.questions({"kind": "folder"}, folder=str(empty)))
    assert type(error) is EvaluationDataError
    assert str(empty) in error.where


def test_a_worker_that_dies_is_named_with_its_log(run: Run) -> None:
    python = run.folder / "python"
    python.write_text("#!/bin/sh\necho last words\nkill -KILL $$\n")
    python.chmod(0o755)
    spec = run.questions({"kind": "builtin"}, python=str(python))
    error = run.failure(spec)
    assert type(error) is WorkerError
    assert "exit code 137" in error.message
    assert "out of memory" in error.message
    assert Path(error.where).read_text() == "last words\n"


def test_a_defect_in_a_stage_is_told_and_its_traceback_kept(anywhere: Run) -> None:
    parameters = {"checkpoint": "c", "quantization": {"kind": "none"}}
    source = write_files(anywhere.folder / "source", checkpoint_files())
    runtime = {"checkpoint": inspected(source).model_dump(mode="json")}
    broken = stage_spec(
        "check_weights", "theirs", parameters, {}, runtime, anywhere.store.root
    )  # without its input
    error = anywhere.failure(broken)
    assert type(error) is InternalStageError
    assert "KeyError: 'weights'" in error.message
    assert str(anywhere.log) in error.where
    assert "Traceback" in anywhere.log.read_text()
    assert "KeyError: 'weights'" in anywhere.log.read_text()


def test_a_spec_that_cannot_be_read_is_a_usage_error(anywhere: Run) -> None:
    anywhere.spec_file.write_text('{"stage": "adopt"}')
    with pytest.raises(UsageError) as caught:
        anywhere.place().submit(anywhere.spec_file, anywhere.log).wait(anywhere.listener)
    assert caught.value.where == str(anywhere.spec_file)
    anywhere.spec_file.unlink()
    with pytest.raises(UsageError) as caught:
        anywhere.place().submit(anywhere.spec_file, anywhere.log).wait(anywhere.listener)
    assert caught.value.where == str(anywhere.spec_file)


def test_a_stage_killed_by_the_kernel_is_an_error_that_names_the_log(run: Run) -> None:
    with run.waiting(run.adopt()) as (job, pid):
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(StageError, match="137") as caught:
            job.wait(run.listener)
    assert "out of memory" in caught.value.message
    assert caught.value.where == str(run.log)
    assert run.log.is_file()
    assert run.processes() == {}


def test_cancelling_leaves_no_process(run: Run) -> None:
    with run.waiting(run.adopt()) as (job, _):
        assert len(run.processes()) == 2
        job.cancel()
        assert run.processes() == {}


def test_a_folder_in_the_way_does_not_shadow_our_code(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run.folder / "pipeline").mkdir()
    (run.folder / "pipeline" / "__init__.py").write_text("raise RuntimeError('not ours')")
    monkeypatch.chdir(run.folder)
    spec = run.adopt()
    run.submit(spec).wait(run.listener)
    assert run.store.find("adopt", spec.key) is not None


class TestChosenBySettings:
    """A second executor is a class that is declared, and a line of the settings chooses it."""

    def settings(self, folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> Settings:
        (folder / "settings.yaml").write_text(text)
        monkeypatch.setenv("PREPARE_SETTINGS", str(folder / "settings.yaml"))
        return load_settings(folder / "store")

    def test_local_where_none_is_chosen(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert isinstance(executor_of(self.settings(tmp_path, monkeypatch, "")), LocalExecutor)

    def test_no_such_executor(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        settings = self.settings(tmp_path, monkeypatch, "executor: slrum\n")
        with pytest.raises(UsageError, match="'slrum'") as caught:
            executor_of(settings)
        assert f"{tmp_path / 'settings.yaml'}, key executor.kind" in caught.value.where
        assert "local" in caught.value.hint

    @pytest.mark.parametrize(
        ("text", "key"),
        [
            ("executor: {kind: ray, adress: here}", "executor.adress"),
            ("executor: {kind: ray, tries: 0}", "executor.tries"),
            ("executor: {kind: ray, address: ray://head:10001}", "executor.address"),
            ("executor: {kind: local, address: here}", "executor.address"),
            ("executor: {address: here}", "executor.kind"),
            ("executor: {kind: slurm, cpus_per_gpu: 0}", "executor.cpus_per_gpu"),
            ("executor: {kind: slurm, flags: [-N2]}", "executor.flags"),
        ],
    )
    def test_a_wrong_key_is_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, key: str
    ) -> None:
        with pytest.raises(UsageError) as caught:
            executor_of(self.settings(tmp_path, monkeypatch, text))
        assert caught.value.where.endswith(f"{tmp_path / 'settings.yaml'}, key {key}")

    def test_an_option_chooses_by_kind(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        said = "executor: {kind: ray, address: 'head:6379'}"
        self.settings(tmp_path, monkeypatch, said)
        assert load_settings(executor="local").executor == {"kind": "local"}
        asked = {"kind": "ray", "address": "head:6379"}
        assert load_settings(executor="ray").executor == asked
        assert load_settings().executor == asked

    def test_slurm_is_used_where_jobs_are_submitted(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        settings = self.settings(tmp_path, monkeypatch, "executor: slurm")
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(UsageError) as caught:
            executor_of(settings)
        assert caught.value.where == "executor slurm"

    def test_a_package_that_is_missing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "ray", None)
        with pytest.raises(UsageError, match="ray") as caught:
            executor_of(self.settings(tmp_path, monkeypatch, "executor: ray"))
        assert ".[ray]" in caught.value.hint
