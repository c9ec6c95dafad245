"""The loop that does a run's work: order, room, failures, and what is told."""

from __future__ import annotations

import signal
import threading
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from fake_run import ONE, TWO, FakeRun, flipping, lost, policy
from listener import Listener
from pretend_stages import PretendExecutor, PretendJob, PretendModels

from artifacts.evidence.verify import check_run
from pipeline.core.errors import StageError, StoreError
from pipeline.core.resource_request import ResourceRequest
from pipeline.core.stage_record import StageRecord, StageSpec
from pipeline.core.store import RECORD, Store
from pipeline.run.scheduler import ScheduledWork, Scheduler
from pipeline.run.stage_runner import SubmittedStageRunner
from recipes.speed import SpeedPolicy

THREE = "three"


@dataclass
class Hands:
    """An executor with so many hands; a job ends when the test says so."""

    has_our_environments = True
    store: Store
    hands: int
    asked: list[ResourceRequest] = field(default_factory=list)
    jobs: dict[str, Job] = field(default_factory=dict)
    most: int = 0

    def find_room(self, needs: ResourceRequest) -> Place | None:
        self.asked.append(needs)
        busy = sum(not job.ended.is_set() for job in self.jobs.values())
        self.most = max(self.most, busy)
        return Place(self) if busy < self.hands else None

    def count_room(self, needs: ResourceRequest) -> int:
        return self.hands

    def obstacle(self) -> str:
        return "a free hand"


@dataclass
class Place:
    hands: Hands
    released: bool = False

    def submit(self, task: Path, log: Path) -> Job:
        spec = StageSpec.model_validate_json(task.read_text())
        job = self.hands.jobs[spec.variant] = Job(self.hands.store, spec)
        return job

    def release(self) -> None:
        self.released = True


@dataclass
class Job:
    store: Store
    spec: StageSpec
    ended: threading.Event = field(default_factory=threading.Event)
    failure: Exception | None = None
    cancelled: bool = False

    def wait(self, listener: Any) -> None:
        self.ended.wait(20)
        if self.cancelled:
            raise StageError("cancelled")
        if self.failure is not None:
            raise self.failure
        listener.note(f"{self.spec.variant} told in {threading.current_thread().name}")

    def cancel(self) -> None:
        self.cancelled = True
        self.ended.set()

    def end(self, failure: Exception | None = None) -> None:
        """Well, with its record in the store; or badly."""
        self.failure = failure
        if failure is None:
            with self.store.open_for_writing(self.spec.stage, self.spec.key) as folder:
                assert folder is not None
                record = StageRecord(
                    **self.spec.model_dump(include={"stage", "variant", "key", "parameters"}),
                    inputs={},
                    input_digests={},
                    result={},
                    notes=[],
                    seconds=0,
                    finished="",
                )
                (folder / RECORD).write_text(record.model_dump_json())
        self.ended.set()


@dataclass
class Log:
    folder: Path
    ended: list[str] = field(default_factory=list)

    def stage(self, stage: Any) -> None:
        self.ended.append(f"{stage.variant} {stage.status}")

    def note_running(self, stages: Any, *, over: bool = False) -> None:
        """Nothing to keep."""


class Bench:
    """Work named by letters, each to be done once those before it are."""

    def __init__(self, folder: Path, hands: int, after: dict[str, str]) -> None:
        self.store, self.after = Store(folder / "store"), after
        self.hands = Hands(self.store, hands)
        self.log, self.listener = Log(folder), Listener()
        self.stages = SubmittedStageRunner(
            self.store, self.hands, lambda _: Path("python"), self.log, self.listener
        )
        self.errors: dict[str, str] = {}

    def spec(self, name: str) -> StageSpec:
        return StageSpec(
            stage="judge",
            variant=name,
            key=f"{ord(name):064x}",
            parameters={},
            inputs={},
            runtime={},
            store=str(self.store.root),
        )

    def find(self, running: Collection[ScheduledWork]) -> list[ScheduledWork]:
        done = {name for name in self.after if self.stages.reuse(self.spec(name))}
        ready = [
            name
            for name, before in self.after.items()
            if name not in done and name not in self.errors and set(before) <= done
        ]
        return [ScheduledWork(n, lambda n=n: self.spec(n), ResourceRequest()) for n in ready]  # type: ignore[misc]

    def ended(self, work: ScheduledWork, error: Exception | None) -> None:
        if error is not None:
            self.errors[work.name] = str(error)

    def run(self, *script: str) -> None:
        """End the jobs in that order, each as soon as it runs: 'a' well, '-a' badly."""

        def play() -> None:
            for step in script:
                name = step[-1]
                while name not in self.hands.jobs:
                    threading.Event().wait(0.01)
                self.hands.jobs[name].end(StageError("no") if step[0] == "-" else None)

        player = threading.Thread(target=play, daemon=True)
        player.start()
        Scheduler(self.stages).run(self.find, self.ended)
        player.join(20)


def test_what_is_ready_runs_side_by_side(tmp_path: Path) -> None:
    bench = Bench(tmp_path, 2, {"a": "", "b": "", "c": "ab"})
    bench.run("b", "a", "c")
    assert bench.log.ended == ["b ran", "a ran", "c ran"]
    assert set(bench.hands.jobs) == {"a", "b", "c"}


def test_what_is_more_urgent_gets_the_room_first(tmp_path: Path) -> None:
    bench = Bench(tmp_path, 1, {"a": "", "b": "", "c": ""})
    bench.run("a", "b", "c")
    assert bench.log.ended == ["a ran", "b ran", "c ran"]


def test_a_failure_ends_no_other(tmp_path: Path) -> None:
    bench = Bench(tmp_path, 2, {"a": "", "b": "", "c": "a", "d": "b"})
    bench.run("-a", "b", "d")
    assert bench.errors == {"a": "no"}
    assert bench.log.ended == ["a failed", "b ran", "d ran"]


def test_an_error_that_is_raised_on_ends_all_that_runs(tmp_path: Path) -> None:
    bench = Bench(tmp_path, 2, {"a": "", "b": ""})

    def ended(work: ScheduledWork, error: Exception | None) -> None:
        raise error or AssertionError

    bench.ended = ended  # type: ignore[method-assign]
    with pytest.raises(StageError):
        bench.run("-a")
    assert bench.hands.jobs["b"].cancelled
    assert sorted(bench.log.ended) == ["a failed", "b failed"]


def test_an_interrupt_ends_all_that_runs(tmp_path: Path) -> None:
    bench = Bench(tmp_path, 2, {"a": "", "b": "", "c": "a"})
    found = bench.find

    def find(running: Collection[ScheduledWork]) -> list[ScheduledWork]:
        if bench.log.ended:
            raise KeyboardInterrupt
        return found(running)

    bench.find = find  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        bench.run("a")
    assert bench.hands.jobs["b"].cancelled


def test_all_that_runs_is_ended_side_by_side_and_what_may_go_on_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An executor whose scheduler does not answer cannot end its work."""
    bench = Bench(tmp_path, 3, {"a": "", "b": "", "c": ""})
    cancel, both = Job.cancel, threading.Barrier(2)

    def cancelled(job: Job) -> None:
        both.wait(20)
        cancel(job)
        if job.spec.variant == "b":
            raise StageError("nobody answers")

    def ended(work: ScheduledWork, error: Exception | None) -> None:
        raise error or AssertionError

    bench.ended = ended  # type: ignore[method-assign]
    monkeypatch.setattr(Job, "cancel", cancelled)
    with pytest.raises(StageError) as raised:
        bench.run("-a")
    assert raised.value.message == "no"
    assert all(bench.hands.jobs[name].cancelled for name in "bc")
    assert sorted(bench.log.ended) == ["a failed", "b failed", "c failed"]
    assert [note for note in bench.listener.notes if "nobody answers" in note]


def test_one_that_is_interrupted_again_and_again_tells_of_each_stage_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who presses Ctrl-C does so several times, and a guard asks every few moments."""
    bench = Bench(tmp_path, 2, {"a": "", "b": "", "c": "a"})
    cancel, report = Job.cancel, bench.stages.report

    def cancelled(job: Job) -> None:
        signal.raise_signal(signal.SIGINT)
        cancel(job)

    def interrupted(*arguments: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        report(*arguments)
        signal.raise_signal(signal.SIGINT)

    bench.stages.report = interrupted  # type: ignore[method-assign]
    monkeypatch.setattr(Job, "cancel", cancelled)
    with pytest.raises(KeyboardInterrupt):
        bench.run("a")
    assert bench.hands.jobs["b"].cancelled
    assert sorted(bench.log.ended) == ["a ran", "b failed"]


def test_where_the_record_of_one_cannot_be_kept_all_others_are_ended(tmp_path: Path) -> None:
    bench = Bench(tmp_path, 3, {"a": "", "b": "", "c": ""})
    report = bench.stages.report

    def full(spec: StageSpec, *more: Any) -> None:
        if spec.variant != "c":
            raise StoreError("the disk is full")
        report(spec, *more)

    bench.stages.report = full  # type: ignore[method-assign]
    with pytest.raises(StoreError):
        bench.run("a")
    assert bench.hands.jobs["b"].cancelled
    assert bench.log.ended == ["c failed"]


def test_jobs_tell_in_the_thread_that_runs_all(tmp_path: Path) -> None:
    """Neither the record of a run nor a display is made for several threads."""
    bench = Bench(tmp_path, 2, {"a": "", "b": ""})
    threads = set()
    note = bench.listener.note

    def noting(text: str) -> None:
        threads.add(threading.current_thread())
        note(text)

    bench.listener.note = noting  # type: ignore[method-assign]
    bench.run("a", "b")
    assert threads == {threading.current_thread()}
    assert {text.split()[0] for text in bench.listener.notes} >= {"a", "b"}


def test_a_job_that_ends_well_and_leaves_nothing_is_an_error(tmp_path: Path) -> None:
    bench = Bench(tmp_path, 1, {"a": ""})
    job_end = Job.end

    def end(job: Job, failure: Exception | None = None) -> None:
        job.ended.set()

    Job.end = end  # type: ignore[method-assign]
    try:
        with pytest.raises(StoreError):
            bench.run("a")
    finally:
        Job.end = job_end  # type: ignore[method-assign]


def test_a_serving_task_that_leaves_its_first_stage_undone_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where later ones were done before: else it would be held again and again."""
    made = FakeRun(tmp_path / "store")
    made.run()
    submit, submitted = PretendExecutor.submit, []

    def discard() -> None:
        for record in list(made.store.records("screen")):
            if record.variant == ONE:
                made.store.discard("screen", record.key)

    def submit_and_discard(executor: PretendExecutor, task: Path, log: Path) -> PretendJob:
        submitted.append(task.name)
        assert len(submitted) < 20
        job = submit(executor, task, log)
        if ".serving_task." in task.name:
            discard()
        return job

    discard()
    monkeypatch.setattr(PretendExecutor, "submit", submit_and_discard)
    with pytest.raises(StoreError):
        made.run()


def test_that_there_is_no_room_is_told_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path, 0, {"a": ""})

    def free() -> None:
        while len(bench.hands.asked) < 3:
            threading.Event().wait(0.01)
        bench.hands.hands = 1

    threading.Thread(target=free, daemon=True).start()
    bench.run("a")
    assert [text for text in bench.listener.notes if text.startswith("waiting for")] == [
        "waiting for a free hand"
    ]


class TestSideBySide:
    """A whole run with more room says what it says with less."""

    def bench(self, store: Path, rooms: int) -> FakeRun:
        score = flipping(4)
        worse = lost(2)
        models = PretendModels(
            lambda v, suite, n: worse(v, suite, n) if v == TWO else score(v, suite, n), 600
        )
        made = FakeRun(store, models, policy(), (ONE, TWO, THREE), rooms=rooms)
        arguments = {**made.serving["engine_arguments"], "max-model-len": 16384}
        made.serving = {**made.serving, "engine_arguments": arguments}
        made.policy = made.policy.model_copy(
            update={
                "speed": SpeedPolicy.model_validate(
                    {
                        "ratio": {"min_ratio": {"cpu": 0.5}, "workloads": ["chat"]},
                        "workloads": {
                            "chat": {
                                "kind": "random",
                                "input_tokens": 16,
                                "output_tokens": 8,
                                "arrivals": {"concurrency": 4},
                            }
                        },
                    }
                )
            }
        )
        return made

    @pytest.mark.parametrize("rooms", [2, 6])
    def test_verdicts(self, tmp_path: Path, rooms: int) -> None:
        alone, made = self.bench(tmp_path / "one", 1), self.bench(tmp_path / "more", rooms)
        alone.run()
        made.run()
        verdicts = [
            {each.recipe: (each.verdict, [g.n for g in each.gates]) for each in run.report.variants}
            for run in (alone, made)
        ]
        assert verdicts[0] == verdicts[1]
        assert all(not c.differences for c in check_run(made.report, made.store))

    def test_loads_have_their_own_serving_task(self, tmp_path: Path) -> None:
        """Questions of several variants are answered side by side; nothing runs next to a load."""
        made = self.bench(tmp_path / "store", 3)
        made.run()
        assert made.models.served.count("baseline") > 1
        again = made.run()
        assert {stage.status for stage in again.stages} == {"reused"}
