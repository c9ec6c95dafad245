"""A run's resources and record."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from functools import cache

from artifacts.requests import CommandRequest
from artifacts.run_outcome import how_to_continue
from artifacts.run_record import ResolvedOptions, RunReport
from pipeline.environments.compile_caches import open_caches
from pipeline.environments.environment import Accelerator, ensure, identity
from pipeline.environments.settings import Settings
from pipeline.plan.progress import PlanProgress
from pipeline.run.copies import JoinedRun
from pipeline.run.recorder import RecordingProgress, RunRecorder
from pipeline.run.serving import LocalServers, Serving
from pipeline.run.stage_run import StageRunner
from prepare.errors import ExitCode, PrepareError, StoreError, explain
from prepare.events import Progress
from prepare.interruption import hold_interruptions, is_interruption
from prepare.lots import Node


class RunInterrupted(KeyboardInterrupt):  # as the exception that it is
    """The run was interrupted; its record is closed."""

    def __init__(self, report: RunReport) -> None:
        super().__init__()
        self.report = report


class RunSession:
    """One run, or one copy of it."""

    def __init__(
        self,
        request: CommandRequest,
        resolved: ResolvedOptions,
        accelerator: Accelerator,
        settings: Settings,
        progress: Progress,
        joined: JoinedRun | None = None,
    ) -> None:
        store = settings.open_store()
        run_id, index = (joined.run_id, joined.index) if joined else (None, 0)
        self.settings = settings
        self.node = Node()
        self.log = RunRecorder(store, request, resolved, progress.note, run_id=run_id, index=index)
        self._shown = progress
        self.progress = RecordingProgress(progress, self.log)
        python_of = cache(lambda name: ensure(name, accelerator, settings, self.progress).python)
        self.stages = StageRunner(store, python_of, self.log, self.progress, accelerator)

    def serving(self, state: PlanProgress) -> Serving:

        def caches_of(name: str) -> Mapping[str, str]:
            found = identity(name, self.stages.accelerator, self.settings)
            return open_caches(self.settings.home, found, self.progress)

        return Serving(state, self.stages, LocalServers(self.stages, caches_of), self.node)

    def run(self, work: Callable[[], ExitCode]) -> RunReport:
        """Do the work and close the run's record, with any PrepareError.

        RunInterrupted: the user or the system ended it.
        """
        try:
            code = work()
        except BaseException as raised:
            error = explain(raised)
            is_stopped = is_interruption(error)
            expected = error if isinstance(error, PrepareError) and not is_stopped else None
            code = ExitCode.INTERRUPTED if is_stopped else ExitCode.UNEXPECTED
            # The disk may be full; the first error is raised, whether the record is stored or not.
            with hold_interruptions(), contextlib.suppress(StoreError):
                self.log.finish(
                    "interrupted" if is_stopped else "failed",
                    expected.exit_code if expected else code,
                    expected,
                )
            if is_stopped:
                self._shown.note(how_to_continue(self.log.report()))
                raise RunInterrupted(self.log.report()) from raised
            if expected is None:
                raise
            return self.log.report()
        self.log.finish("finished", code)
        return self.log.report()
