"""A run's resources, and its record, which every exit closes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from artifacts.recorded_command import RunKind
from artifacts.run_outcome import how_to_continue
from artifacts.run_record import RunReport
from pipeline.core.errors import ExitCode, PrepareError, StoreError
from pipeline.core.events import Progress
from pipeline.core.interruption import hold_interruptions, is_interruption
from pipeline.environments.environment import Accelerator, interpreters
from pipeline.environments.settings import Settings
from pipeline.run.executors import Executor, executor_of
from pipeline.run.run_recorder import RecordingProgress, RunRecorder
from pipeline.run.stage_runner import SubmittedStageRunner


class RunInterrupted(KeyboardInterrupt):  # as the exception that it is
    """The run was interrupted; its record is closed."""

    def __init__(self, report: RunReport) -> None:
        super().__init__()
        self.report = report


class RunSession:
    """One run: its settings, its record, and its stage runner.

    Raises:
        UsageError: the settings name an unknown executor.
        StoreError: the store cannot be written, or its file system keeps no locks.
    """

    def __init__(
        self,
        kind: RunKind,
        command: dict[str, Any],
        accelerator: Accelerator,
        settings: Settings,
        progress: Progress,
        executor: Executor | None = None,
    ) -> None:
        store, executor = settings.open_store(), executor or executor_of(settings)
        self.settings = settings
        self.log = RunRecorder(store, kind, command, progress.note)
        self._shown = progress
        self.progress = RecordingProgress(progress, self.log)
        python_of = interpreters(accelerator, settings, self.progress)
        self.stages = SubmittedStageRunner(
            store, executor, python_of, self.log, self.progress, accelerator
        )

    def run(self, work: Callable[[], ExitCode]) -> RunReport:
        """Do the work and close the run's record.

        Args:
            work: returns the exit code; a PrepareError becomes part of the record.

        Raises:
            RunInterrupted: the user or the system ended it; the record is closed.
            Exception: any other error, raised again once the record is closed.
        """
        try:
            try:
                code = work()
            finally:
                self.stages.cancel()
        except BaseException as error:
            is_stopped = is_interruption(error)
            expected = error if isinstance(error, PrepareError) and not is_stopped else None
            code = ExitCode.INTERRUPTED if is_stopped else ExitCode.UNEXPECTED
            # The disk may be full: the first error is the one to tell, whether it can be kept.
            with hold_interruptions(), contextlib.suppress(StoreError):
                self.log.finish(
                    "interrupted" if is_stopped else "failed",
                    expected.exit_code if expected else code,
                    expected,
                )
            if is_stopped:
                self._shown.note(how_to_continue(self.log.report()))
                raise RunInterrupted(self.log.report()) from error
            if expected is None:
                raise
            return self.log.report()
        self.log.finish("finished", code)
        return self.log.report()
