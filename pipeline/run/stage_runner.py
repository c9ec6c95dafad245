"""Runs single stages: reuses what is in the store, runs or submits the rest, keeps the log."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from artifacts.run_record import StageReport, StageStatus
from pipeline import __version__
from pipeline.core.errors import StoreError
from pipeline.core.installation import this_prepare
from pipeline.core.private_files import private_umask
from pipeline.core.resource_request import ResourceRequest
from pipeline.core.stage_record import StageRecord, StageSpec, WorkItem
from pipeline.core.store import Store, write_atomically
from pipeline.environments.definition import Accelerator
from pipeline.run.executors import Allocation, Executor, Job, Listener
from pipeline.stages.context import advance
from pipeline.stages.evaluate import EVALUATE
from pipeline.stages.speed import SPEED
from pipeline.stages.stage_interpreter import with_interpreter

POLL_INTERVAL_S = 0.2
PythonOf = Callable[[str], Path]
ExtraRuntime = Callable[[], Mapping[str, Any]]


class StageLog(Protocol):
    """Keeps what became of stages, and has a folder for their logs."""

    @property
    def folder(self) -> Path:
        """The run's."""

    def stage(self, stage: StageReport) -> None:
        """Record the end of a stage."""

    def note_running(self, stages: Sequence[str], *, over: bool = False) -> None:
        """Record that these have begun, or are over."""


def title_of(spec: StageSpec) -> str:
    """Return the stage's name for people, with its suite or speed gate."""
    if spec.stage == EVALUATE.name:
        return f"{spec.stage} {EVALUATE.runtime_of(spec).suite}"
    if spec.stage == SPEED.name:
        return f"{spec.stage} {SPEED.runtime_of(spec).claim}"
    return spec.stage


def describe(spec: StageSpec) -> str:
    """Return variant and stage, as a run's record lists running stages."""
    return f"{spec.variant}: {title_of(spec)}"


class StageRunner:
    """Runs stages in this process, one after another, and only those that have to run.

    Args:
        python_of: interpreter of an environment by name; builds it on first use.
        accelerator: that these environments are for.
    """

    def __init__(
        self,
        store: Store,
        python_of: PythonOf,
        log: StageLog,
        progress: Listener,
        accelerator: Accelerator = Accelerator.CPU,
    ) -> None:
        self.accelerator = accelerator
        self.has_environments = True
        self.store = store
        self.python_of = python_of
        self.log = log
        self.progress = progress
        self._found: dict[str, StageRecord] = {}
        self._submitted: set[str] = set()

    def run(self, spec: StageSpec, extra_runtime: ExtraRuntime | None = None) -> StageRecord:
        """Run the stage, or reuse its result.

        Args:
            extra_runtime: called each time that the stage must run; for an endpoint, it opens it.

        Raises:
            PrepareError: as the stage reported it.
        """
        record = self.reuse(spec)
        while record is None:
            ready = self.add_runtime(spec, extra_runtime() if extra_runtime else {})
            started = time.monotonic()
            self.log.note_running([describe(spec)])
            try:
                self._do(ready)
            except BaseException:
                self.report(spec, "failed", started)
                raise
            self.report(spec, "ran", started)
            record = self.store.find(spec.stage, spec.key)
            if record is not None:
                self._found[spec.key] = record
                return record
            if not self.store.unfinished_folder(spec.stage, spec.key).exists():
                record = self.find_finished(spec)
        return record

    def reuse(self, spec: StageSpec) -> StageRecord | None:
        """Return the stage's record if it need not run; else None, after removing its remains.

        The first time that it is found in the store the log has it as reused; one that has been
        submitted is not done before its job has ended.
        """
        if spec.key in self._submitted:
            return None
        if spec.key not in self._found:
            started = time.monotonic()
            record = self._find_reusable(spec)
            if record is None:
                return None
            self._found[spec.key] = record
            self.report(spec, "reused", started)
        return self._found[spec.key]

    def output_of(self, spec: StageSpec) -> Path:
        """Run the stage, or reuse its result; the folder that it has filled.

        Raises:
            PrepareError: as the stage reported it.
        """
        self.run(spec)
        return self.store.stage_folder(spec.stage, spec.key) / "output"

    def find_reusable(self, spec: StageSpec) -> StageRecord | None:
        return self.store.find_current(spec.stage, spec.key)

    def find_finished(self, spec: StageSpec) -> StageRecord:
        """Return a finished stage's record; raise StoreError if it is gone."""
        record = self.store.find(spec.stage, spec.key)
        if record is None:
            raise StoreError(
                f"the stage '{spec.stage}' has vanished from the store",
                where=str(self.store.stage_folder(spec.stage, spec.key)),
                hint="run the command again",
            )
        self._found[spec.key] = record
        return record

    def note_submitted(self, specs: Sequence[StageSpec]) -> None:
        """Mark these as running; `note_ended` must follow."""
        self._submitted.update(spec.key for spec in specs)
        self.log.note_running([describe(spec) for spec in specs])

    def note_ended(self, specs: Sequence[StageSpec]) -> bool:
        """Their job has ended, in any way; whether the first is done, which was not before."""
        for spec in specs:
            self._submitted.discard(spec.key)
            self.log.note_running([describe(spec)], over=True)
            if (record := self.find_reusable(spec)) is not None:
                self._found[spec.key] = record
        return specs[0].key in self._found

    def add_runtime(self, spec: StageSpec, extra: Mapping[str, Any]) -> StageSpec:
        """Return the stage with runtime values that are known only now."""
        runtime = dict(spec.runtime)
        if "environment" in runtime:
            runtime["accelerator"] = str(self.accelerator)
            if self.has_environments:
                runtime["python"] = str(self.python_of(runtime["environment"]))
        return spec.model_copy(update={"runtime": {**runtime, **extra}})

    def report(self, spec: StageSpec, status: StageStatus, started: float) -> None:
        seconds = time.monotonic() - started
        name = title_of(spec)
        self.log.stage(
            StageReport(
                stage=spec.stage,
                name=name,
                variant=spec.variant,
                status=status,
                seconds=seconds,
                key=spec.key,
            )
        )
        self.progress.note(f"{spec.variant}: {name} {status} ({seconds:.1f} s)")

    def _do(self, spec: StageSpec) -> None:
        advance(with_interpreter(spec, self.progress), self.store, self.progress)

    def _find_reusable(self, spec: StageSpec) -> StageRecord | None:
        record = self.store.find(spec.stage, spec.key)
        if record is None:
            return None
        if self.find_reusable(spec) is None:
            self.store.discard(spec.stage, spec.key)
            return None
        return record


class SubmittedStageRunner(StageRunner):
    """Has an executor run each stage, as a separate work item."""

    def __init__(
        self,
        store: Store,
        executor: Executor,
        python_of: PythonOf,
        log: StageLog,
        progress: Listener,
        accelerator: Accelerator = Accelerator.CPU,
    ) -> None:
        super().__init__(store, python_of, log, progress, accelerator)
        self.executor = executor
        self.has_environments = executor.has_our_environments
        self._job: Job | None = None

    def submit(self, place: Allocation, name: str, task: WorkItem) -> Job:
        """Start a piece of work, whose file and log of that name are kept with the run."""
        folder = self.log.folder / "stages"
        with private_umask(folder.parent):
            folder.mkdir(exist_ok=True)
        file = folder / f"{name}.json"
        # Nobody else's code runs on this machine.
        prepare = __version__ if self.executor.has_our_environments else this_prepare()
        ours = task.model_copy(update={"prepare": prepare})
        write_atomically(file, ours.model_dump_json(indent=1))
        return place.submit(file, folder / f"{name}.log")

    def cancel(self) -> None:
        if self._job is not None:
            self._job.cancel()
            self._job = None

    def _do(self, spec: StageSpec) -> None:
        place, is_told = self.executor.find_room(ResourceRequest()), False
        while place is None:
            if not is_told:
                self.progress.note(f"waiting for {self.executor.obstacle()}")
            is_told = True
            time.sleep(POLL_INTERVAL_S)
            place = self.executor.find_room(ResourceRequest())
        try:
            self._job = self.submit(place, name_of(spec), spec)
            self._job.wait(self.progress)
            self._job = None
        finally:
            place.release()


def name_of(spec: StageSpec) -> str:
    """Return the name of its file and log."""
    return f"{spec.variant}.{spec.stage}.{spec.key[:8]}"
