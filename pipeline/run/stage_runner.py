"""Runs single stages for one run: reuses what is in the store, submits the rest, keeps the log."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from artifacts.run_record import StageReport, StageStatus
from artifacts.stages.evaluate import EVALUATE
from artifacts.stages.speed import SPEED
from pipeline.core.errors import StoreError
from pipeline.core.needs import Needs
from pipeline.core.private_files import keep_private
from pipeline.core.stage_record import StageRecord, StageSpec
from pipeline.core.store import Store, write_atomically
from pipeline.run.executors import Executor, Job, Listener
from pipeline.run.run_log import RunLog
from pipeline.stages import stage_code

SECONDS_BETWEEN_LOOKS = 0.5
PythonOf = Callable[[str], Path]
ExtraRuntime = Callable[[], Mapping[str, Any]]


class StageRunner:
    """Runs stages one after another.

    Args:
        python_of: interpreter of an environment by name; builds it on first use.
    """

    def __init__(
        self,
        store: Store,
        executor: Executor,
        python_of: PythonOf,
        log: RunLog,
        progress: Listener,
    ) -> None:
        self.store = store
        self.python_of = python_of
        self.log = log
        self.progress = progress
        self._executor = executor
        self._job: Job | None = None

    def run(self, spec: StageSpec, extra_runtime: ExtraRuntime | None = None) -> StageRecord:
        """Run the stage, or reuse its result.

        Args:
            extra_runtime: called each time that the stage must run; for an endpoint, it opens it.

        Raises:
            PrepareError: as the stage reported it.
        """
        started = time.monotonic()
        record = self._find_reusable(spec)
        if record is not None:
            self._report(spec, "reused", started)
            return record
        while True:
            ready = self._add_runtime(spec, extra_runtime)
            started = time.monotonic()
            try:
                self._submit(ready)
            except BaseException:
                self._report(spec, "failed", started)
                raise
            self._report(spec, "ran", started)
            record = self.store.find(spec.stage, spec.key)
            if record is not None:
                return record
            if not self.store.unfinished_folder(spec.stage, spec.key).exists():
                return self.find_finished(spec)

    def output_of(self, spec: StageSpec) -> Path:
        """Run the stage, or reuse its result; the folder that it has filled.

        Raises:
            PrepareError: as the stage reported it.
        """
        self.run(spec)
        return self.store.stage_folder(spec.stage, spec.key) / "output"

    def is_reusable(self, spec: StageSpec) -> bool:
        """Whether `run` would find the stage done."""
        return self._find_reusable(spec) is not None

    def find_reusable(self, spec: StageSpec) -> StageRecord | None:
        """The stage's record, if it is in the store and rests on what is there now."""
        return self.store.find_current(spec.stage, spec.key)

    def find_finished(self, spec: StageSpec) -> StageRecord:
        """The record of a stage that has been run; raises StoreError when it has vanished."""
        record = self.store.find(spec.stage, spec.key)
        if record is None:
            raise StoreError(
                f"the stage '{spec.stage}' has vanished from the store",
                where=str(self.store.stage_folder(spec.stage, spec.key)),
                cure="run the command again",
            )
        return record

    def cancel(self) -> None:
        """End the stage that runs, if one does."""
        if self._job is not None:
            self._job.cancel()
            self._job = None

    def _find_reusable(self, spec: StageSpec) -> StageRecord | None:
        record = self.store.find(spec.stage, spec.key)
        if record is None:
            return None
        still_holds = getattr(stage_code(spec.stage), "still_holds", None)
        if self.find_reusable(spec) is None or (
            still_holds is not None and not still_holds(record)
        ):
            self.store.discard(spec.stage, spec.key)
            return None
        return record

    def _add_runtime(self, spec: StageSpec, extra_runtime: ExtraRuntime | None) -> StageSpec:
        runtime = dict(spec.runtime)
        if "environment" in runtime:
            runtime["python"] = str(self.python_of(runtime["environment"]))
        if extra_runtime is not None:
            runtime.update(extra_runtime())
        return spec.model_copy(update={"runtime": runtime})

    def _submit(self, spec: StageSpec) -> None:
        folder = self.log.folder / "stages"
        with keep_private():
            folder.mkdir(exist_ok=True)
        stem = f"{spec.variant}.{spec.stage}.{spec.key[:8]}"
        spec_file = folder / f"{stem}.json"
        write_atomically(spec_file, spec.model_dump_json(indent=1))
        while (place := self._executor.find_room(Needs())) is None:
            time.sleep(SECONDS_BETWEEN_LOOKS)
        try:
            self._job = place.submit(spec_file, folder / f"{stem}.log")
            self._job.wait(self.progress)
            self._job = None
        finally:
            place.release()

    def _report(self, spec: StageSpec, status: StageStatus, started: float) -> None:
        seconds = time.monotonic() - started
        name = spec.stage
        if name == EVALUATE.name:
            name = f"{name} {EVALUATE.runtime_of(spec).suite}"
        elif name == SPEED.name:
            name = f"{name} {SPEED.runtime_of(spec).claim}"
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
