"""Keeps the record of one run on disk, true at every moment: run.json in the run's folder."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock, Timeout

from artifacts.run_record import (
    SCHEMA_VERSION,
    CheckpointReport,
    RunReport,
    StageReport,
    VariantReport,
)
from pipeline.errors import PrepareError, StoreError, UsageError
from pipeline.events import Progress
from pipeline.store import Store, write_atomically

RUN_RECORD = "run.json"
ALIVE_LOCK = "alive.lock"
Ended = Literal["finished", "failed", "interrupted"]


class RunLog:
    """The growing RunReport of one `prepare model`.

    Args:
        store: where the run's folder is made.
        command: options as resolved.
    """

    def __init__(self, store: Store, command: dict[str, Any]) -> None:
        now = datetime.now(UTC)
        # Microseconds make ids of runs that start together differ.
        self.run_id = now.strftime("%Y%m%d-%H%M%S-%f")
        self._store = store
        self.folder: Path = store.new_run_folder(self.run_id)
        # Held as long as we live, however we end: a run that says 'running' without it was killed.
        self._alive = FileLock(self.folder / ALIVE_LOCK, mode=0o600)
        self._alive.acquire()
        self._started = time.monotonic()
        self._variants: dict[str, VariantReport] = {}
        self._report = RunReport(
            run=self.run_id,
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

    def checkpoint(self, checkpoint: CheckpointReport, registered_name: str) -> None:
        """The checkpoint has been inspected."""
        self._update(checkpoint=checkpoint, registered_name=registered_name)

    def counted(self, tried: Sequence[str]) -> None:
        """These variants are counted by the verdicts, also those that this run does not try."""
        self._update(command={**self._report.command, "tried": list(tried)})

    def stage(self, stage: StageReport) -> None:
        """A stage has ended."""
        self._update(stages=[*self._report.stages, stage])

    def variant(self, variant: VariantReport) -> None:
        """A variant has got a verdict, or a new one."""
        self._variants[variant.recipe] = variant
        self._update(variants=self.variants())

    def variants(self) -> list[VariantReport]:
        """Variants judged so far."""
        return list(self._variants.values())

    def variant_named(self, recipe: str) -> VariantReport:
        """The report of that recipe's variant; raises KeyError before it has one."""
        return self._variants[recipe]

    def note(self, text: str) -> None:
        """Something was said aloud."""
        self._update(notes=[*self._report.notes, text])

    def finish(self, status: Ended, exit_code: int, error: PrepareError | None = None) -> None:
        """The run has ended."""
        self._update(status=status, exit_code=exit_code, error=error.to_dict() if error else None)

    def report(self) -> RunReport:
        """The record as it stands."""
        return self._report

    def _update(self, **changes: Any) -> None:
        changes["seconds"] = time.monotonic() - self._started
        self._report = self._report.model_copy(update=changes)
        self._save()

    def _save(self) -> None:
        with self._store.errors_explained():
            write_atomically(self.folder / RUN_RECORD, self._report.model_dump_json(indent=1))


class NotingProgress:
    """Passes progress on and keeps what is said aloud in the run's record."""

    def __init__(self, progress: Progress, log: RunLog) -> None:
        self._progress = progress
        self._log = log

    def advance(self, task: str, done: int, total: int | None, unit: str = "") -> None:
        """Pass the event on."""
        self._progress.advance(task, done, total, unit)

    def note(self, text: str) -> None:
        """Pass the text on and keep it."""
        self._progress.note(text)
        self._log.note(text)


def is_alive(folder: Path) -> bool:
    """Whether the process that made that run still holds its lock."""
    lock = FileLock(folder / ALIVE_LOCK)
    try:
        with lock.acquire(timeout=0):
            return False
    except Timeout:
        return True


def read_run(folder: Path) -> RunReport:
    """The record in that run's folder; raises StoreError when it is missing or damaged."""
    path = folder / RUN_RECORD
    try:
        text = path.read_text(encoding="utf-8")
        version = json.loads(text).get("schema_version", SCHEMA_VERSION)
        if version != SCHEMA_VERSION:
            raise StoreError(
                f"this run's record has schema version {version}, this prepare reads "
                f"{SCHEMA_VERSION}",
                where=str(path),
                cure="read it with the version of prepare that wrote it, or run the command again",
            )
        report = RunReport.model_validate_json(text)
        if report.status == "running" and not is_alive(folder):
            return report.model_copy(update={"status": "killed"})
        return report
    except (OSError, ValueError, AttributeError) as error:
        raise StoreError(f"a run's record cannot be read: {error}", where=str(path)) from error


def find_run(store: Store, name: str) -> RunReport:
    """The run of that id, an unambiguous beginning of one, or 'latest'; else UsageError."""
    folders = store.run_folders()
    matching = folders[-1:] if name == "latest" else [f for f in folders if f.name.startswith(name)]
    if len(matching) != 1:
        known = ", ".join(folder.name for folder in folders[-5:]) or "none"
        raise UsageError(
            f"{'more than one run starts' if matching else 'no run starts'} with '{name}'",
            where=str(store.root / "runs"),
            cure=f"the newest runs: {known}; or 'latest'",
        )
    return read_run(matching[0])
