"""A run's record on disk, always current: run.json in the run's folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from artifacts.recorded_command import RunKind
from artifacts.run_record import RunReport, StageReport, VariantReport
from artifacts.tuning_report import TuningReport
from pipeline.checkpoint.source_info import CheckpointReport
from pipeline.core.errors import PrepareError
from pipeline.core.events import Progress
from pipeline.core.run_folders import RUN_RECORD, RunFolders
from pipeline.core.store import Store, write_atomically

Ended = Literal["finished", "failed", "interrupted"]


class RunRecorder:
    """The growing RunReport of one run."""

    def __init__(
        self,
        store: Store,
        kind: RunKind,
        command: dict[str, Any],
        waits: Callable[[str], None] = lambda text: None,
    ) -> None:
        now = datetime.now(UTC)
        # Microseconds make ids of runs that start together differ.
        self.run_id = now.strftime("%Y%m%d-%H%M%S-%f")
        self._store = store
        self.folder: Path = RunFolders(store).make(self.run_id)
        self._held = ExitStack()
        self._held.enter_context(store.in_use(waits))
        # Held as long as we live, however we end: a run that says 'running' without it was killed.
        self._held.enter_context(RunFolders(store).hold_alive(self.folder))
        self._started = time.monotonic()
        self._variants: dict[str, VariantReport] = {}
        self._report = RunReport(
            run=self.run_id,
            kind=kind,
            status="running",
            exit_code=None,
            started=now.isoformat(timespec="seconds"),
            seconds=0,
            command=command,
            checkpoint=None,
            variants=[],
            stages=[],
            notes=[],
        )
        self._save()

    def note_checkpoint(self, checkpoint: CheckpointReport, registered_name: str) -> None:
        self._update(checkpoint=checkpoint, registered_name=registered_name)

    def note_counted(self, tried: Sequence[str]) -> None:
        self._update(command={**self._report.command, "attempted": list(tried)})

    def note_tuning(self, tuning: TuningReport) -> None:
        self._update(tuning=tuning)

    def stage(self, stage: StageReport) -> None:
        ended = f"{stage.variant}: {stage.name}"
        running = [each for each in self._report.running if each != ended]
        self._update(stages=[*self._report.stages, stage], running=running)

    def note_running(self, stages: Sequence[str], *, over: bool = False) -> None:
        others = [each for each in self._report.running if each not in stages]
        running = others if over else [*others, *stages]
        if running != self._report.running:
            self._update(running=running)

    def note_variant(self, variant: VariantReport) -> None:
        self._variants[variant.recipe] = variant
        self._update(variants=self.variants())

    def variants(self) -> list[VariantReport]:
        return list(self._variants.values())

    def note(self, text: str) -> None:
        self._update(notes=[*self._report.notes, text])

    def finish(self, status: Ended, exit_code: int, error: PrepareError | None = None) -> None:
        told = error.to_dict() if error else None
        self._update(status=status, exit_code=exit_code, error=told, running=[])
        self._held.close()

    def report(self) -> RunReport:
        return self._report

    def _update(self, **changes: Any) -> None:
        changes["seconds"] = time.monotonic() - self._started
        self._report = self._report.model_copy(update=changes)
        self._save()

    def _save(self) -> None:
        with self._store.explain_errors():
            write_atomically(self.folder / RUN_RECORD, self._report.model_dump_json(indent=1))


class RecordingProgress:
    """Passes progress on and adds notes to the run's record."""

    def __init__(self, progress: Progress, log: RunRecorder) -> None:
        self._progress = progress
        self._log = log

    def advance(self, task: str, done: int, total: int | None, unit: str = "") -> None:
        self._progress.advance(task, done, total, unit)

    def note(self, text: str) -> None:
        self._progress.note(text)
        self._log.note(text)

    def stage_ended(self, stage: StageReport) -> None:
        self._log.stage(stage)
