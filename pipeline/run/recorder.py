"""A run's record on disk, always current."""

from __future__ import annotations

import os
import platform
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from artifacts.requests import CommandRequest
from artifacts.run_record import ResolvedOptions, RunReport, StageReport, VariantReport, read_run
from prepare.errors import PrepareError
from prepare.events import EventWriter, Progress
from prepare.file_locks import doing
from prepare.private_files import make_folder, open_log, write_atomically
from prepare.store import RESERVE, RUN_RECORD, RunFolders, Store

COPIES = "copies"
RESERVE_BYTES = 2**20
Ended = Literal["finished", "failed", "interrupted"]


class RunRecorder:
    """The growing RunReport of one run, as one of its copies sees it.

    The main copy, without index or with 0, writes run.json. StoreError: the store cannot be
    written.
    """

    def __init__(
        self,
        store: Store,
        request: CommandRequest,
        resolved: ResolvedOptions,
        waits: Callable[[str], None] = lambda text: None,
        *,
        run_id: str | None = None,
        index: int = 0,
    ) -> None:
        now = datetime.now(UTC)
        # Microseconds make ids of runs that start together differ.
        self.run_id = run_id or now.strftime("%Y%m%d-%H%M%S-%f")
        self._store = store
        self._guard = threading.RLock()  # other copies' events come from a thread
        self._index = index
        self._folders = RunFolders(store)
        self.folder: Path = self._folders.make(self.run_id, is_new=run_id is None)
        self._held = ExitStack()
        self._held.enter_context(store.in_use(waits))
        # Held as long as we live: a run that says 'running' without it was killed.
        self.is_main = index == 0 and self._held.enter_context(
            self._folders.hold_alive(self.folder)
        )
        self._held.enter_context(doing(f"run {self.run_id} in {self.folder.parents[1]}"))
        self._events: EventWriter | None = None
        self.events_name = ""
        if not self.is_main:
            self.events_name = f"{index}.{platform.node()}.{os.getpid()}.jsonl"
            make_folder(self.folder / COPIES)
            file = self._held.enter_context(open_log(self.folder / COPIES / self.events_name))
            self._events = EventWriter(file.fileno())
        else:
            with store.explain_errors(), open_log(self.folder / RESERVE) as file:
                os.posix_fallocate(file.fileno(), 0, RESERVE_BYTES)
        self._started = time.monotonic()
        self._variants: dict[str, VariantReport] = {}
        self._report = RunReport(
            run=self.run_id,
            request=request,
            resolved=resolved,
            status="running",
            exit_code=None,
            started=now.isoformat(),
            seconds=0,
            checkpoint=None,
            variants=[],
            stages=[],
            notes=[],
        )
        self._save()

    @property
    def is_numbered(self) -> bool:
        """Whether it is a launcher's further copy, which never leads."""
        return self._index > 0

    def stage(self, stage: StageReport) -> None:
        ended = f"{stage.variant}: {stage.name}"
        if self._events is not None:
            self._events.write({"event": "stage", **stage.model_dump(mode="json")})
        with self._guard:
            running = [known for known in self._report.running if known != ended]
            stages = list(self._report.stages)
            # What another copy ran and we found finished is listed as "ran".
            same = [known for known in stages if stage.key and known.key == stage.key]
            if stage.status == "reused" and any(known.status == "ran" for known in same):
                self.update(running=running)
                return
            if stage.status == "ran":
                stages = [
                    known for known in stages if known not in same or known.status != "reused"
                ]
            self.update(stages=[*stages, stage], running=running)

    def note_running(self, stages: Sequence[str]) -> None:
        if self._events is not None:
            self._events.write({"event": "running", "stages": list(stages)})
        with self._guard:
            others = [running for running in self._report.running if running not in stages]
            self.update(running=[*others, *stages])

    def note_variant(self, variant: VariantReport) -> None:
        self._variants[variant.recipe] = variant
        self.update(variants=self.variants())

    def variants(self) -> list[VariantReport]:
        return list(self._variants.values())

    def note(self, text: str) -> None:
        if self._events is not None:
            self._events.note(text)
        with self._guard:
            self.update(notes=[*self._report.notes, text])

    def advance(self, task: str, done: int, total: int | None, unit: str = "") -> None:
        """Send progress to the main copy; record nothing."""
        if self._events is not None:
            self._events.advance(task, done, total, unit)

    def take_over(self) -> None:
        """Become the main copy if that was killed.

        Children of a killed main copy hold its lock for seconds.
        """
        if not self.is_main and not self._index:
            with ExitStack() as tried:
                is_free = tried.enter_context(self._folders.hold_alive(self.folder))
                if is_free and (dead := read_run(self.folder)).status == "running":
                    self._held.push(tried.pop_all())
                    self.is_main = True
                    age = datetime.now(UTC) - datetime.fromisoformat(dead.started)
                    self._started = time.monotonic() - age.total_seconds()
                    known = {stage.key for stage in dead.stages if stage.key}
                    mine = [stage for stage in self._report.stages if stage.key not in known]
                    notes = [*dict.fromkeys([*dead.notes, *self._report.notes])]
                    self.update(
                        stages=[*dead.stages, *mine],
                        notes=notes,
                        started=dead.started,
                        moves_before=dead.moves_before,
                    )

    def finish(self, status: Ended, exit_code: int, error: PrepareError | None = None) -> None:
        if status == "failed":
            self.take_over()
        if self.is_main:
            (self.folder / RESERVE).unlink(missing_ok=True)
        told = error.to_dict() if error else None
        self.update(status=status, exit_code=exit_code, error=told, running=[])
        self._held.close()

    def report(self) -> RunReport:
        return self._report

    def update(self, **changes: Any) -> None:
        """Change fields of the record."""
        with self._guard:
            changes["seconds"] = time.monotonic() - self._started
            self._report = self._report.model_copy(update=changes)
            self._save()

    def _save(self) -> None:
        if self.is_main:
            with self._store.explain_errors():
                write_atomically(self.folder / RUN_RECORD, self._report.model_dump_json(indent=1))


class RecordingProgress:
    """Progress that also records notes."""

    def __init__(self, progress: Progress, log: RunRecorder) -> None:
        self._progress = progress
        self._log = log

    def advance(self, task: str, done: int, total: int | None, unit: str = "") -> None:
        self._progress.advance(task, done, total, unit)
        self._log.advance(task, done, total, unit)

    def note(self, text: str) -> None:
        self._progress.note(text)
        self._log.note(text)
