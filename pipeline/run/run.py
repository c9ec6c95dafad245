"""A run, or one copy of it: its store, record, node, environments and servers.

`pieces.py` finds what is ready, and `loop.py` does it.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any

from artifacts.requests import CommandRequest
from artifacts.run_outcome import how_to_continue
from artifacts.run_record import ResolvedOptions, RunReport, StageReport, StageStatus
from eval_gates.answer_log import read_answers
from eval_gates.rows import Answer
from eval_gates.speed.load_run import LOADS, LoadRun, read_loads
from pipeline.environments.compile_caches import open_caches
from pipeline.environments.environment import ensure, identity
from pipeline.environments.settings import Settings
from pipeline.plan.plan import Arm, Piece, title_of
from pipeline.run.copies import JoinedRun
from pipeline.run.recorder import RecordingProgress, RunRecorder
from pipeline.run.tries import Tries
from pipeline.stages import WEIGHTS
from pipeline.stages.check_weights import CHECK_WEIGHTS
from pipeline.stages.context import ArmServers, StageContext, advance
from pipeline.stages.quantize import QUANTIZE
from pipeline.stages.staying_workers import StayingWorkers
from prepare.errors import ExitCode, PrepareError, StoreError, explain
from prepare.events import Progress
from prepare.file_locks import holder_of, is_locked
from prepare.interruption import hold_interruptions, is_interruption
from prepare.lots import NOTHING, Needs, Node
from prepare.private_files import private_umask
from prepare.process_environment import NetworkAccess
from prepare.stage import StageRecord, StageReference, StageSpec
from prepare.store import LOCKS
from recipes.accelerator import Accelerator

POLL_S = 0.5
HOW_TO_WAIT = "Ctrl-C ends this run, and the same command continues it"


class RunInterrupted(KeyboardInterrupt):  # as the exception that it is
    """The run was interrupted; its record is closed."""

    def __init__(self, report: RunReport) -> None:
        super().__init__()
        self.report = report


class Run:
    """One run, or one copy of it.

    As a context it closes the record: a PrepareError ends the run and is recorded; an interruption
    is raised as RunInterrupted.
    """

    def __init__(
        self,
        request: CommandRequest,
        resolved: ResolvedOptions,
        accelerator: Accelerator,
        settings: Settings,
        progress: Progress,
        joined: JoinedRun | None = None,
    ) -> None:
        run_id = joined.run_id if joined else None
        index = joined.index if joined else 0
        self.settings = settings
        self.accelerator = accelerator
        self.store = settings.open_store()
        self.node = Node()
        self.workers = StayingWorkers()
        self.log = RunRecorder(
            self.store, request, resolved, progress.note, run_id=run_id, index=index
        )
        self.tries = Tries(self.log.folder)
        self._shown = progress
        self.progress = RecordingProgress(progress, self.log)
        self.exit_code = ExitCode.SUCCESS
        self._pythons: dict[str, Path] = {}
        self._records: dict[str, StageRecord] = {}
        self._told: set[str] = set()

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        self.workers.end()
        if raised is None:
            self.log.finish("finished", self.exit_code)
            return False
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
        return expected is not None

    # --- environments ---------------------------------------------------------------------------

    def python_of(self, environment: str) -> Path:
        """Return an environment's interpreter; it is built on first use."""
        if environment not in self._pythons:
            made = ensure(environment, self.accelerator, self.settings, self.progress)
            self._pythons[environment] = made.python
        return self._pythons[environment]

    def caches_of(self, environment: str) -> Mapping[str, str]:
        """Return an environment's cache variables."""
        digest = identity(environment, self.accelerator, self.settings)
        return open_caches(self.settings.home, digest, self.progress)

    @property
    def is_on_gpus(self) -> bool:
        return self.accelerator is Accelerator.CUDA

    # --- stages ---------------------------------------------------------------------------------

    def run_stage(
        self,
        spec: StageSpec,
        runtime: Mapping[str, Any] | None = None,
        servers: ArmServers | None = None,
    ) -> StageRecord:
        """Run the stage, or reuse its result; raise the stage's error."""
        if (record := self.reuse(spec)) is not None:
            return record
        ready = self.with_runtime(spec, runtime or {})
        started = time.monotonic()
        self.log.note_running([f"{spec.variant}: {title_of(spec)}"])
        try:
            is_ours = self.execute_stage(ready, servers)
        except BaseException as error:
            self._report(spec, "interrupted" if is_interruption(error) else "failed", started)
            raise
        self._report(spec, "ran" if is_ours else "reused", started)
        return self.find_finished(spec)

    def execute_stage(self, spec: StageSpec, servers: ArmServers | None = None) -> bool:
        """Execute a stage; return False if another process did."""
        with private_umask(self.store.root):
            return advance(spec, self.store, self.progress, servers, self.workers)[1]

    def try_worker(
        self,
        spec: StageSpec,
        worker_spec: dict[str, Any],
        plugins: Sequence[Mapping[str, str]],
        needs: Collection[NetworkAccess],
    ) -> None:
        """Run a stage's asking worker; store nothing."""
        with TemporaryDirectory() as folder:
            context = StageContext[Any, Any](spec, Path(folder), self.store, self.progress)
            context.run_worker(
                "eval_gates.first_rows_worker", worker_spec, plugins=plugins, needs=needs
            )

    def reuse(self, spec: StageSpec) -> StageRecord | None:
        """Return the stage's record, or remove remains."""
        if spec.key not in self._records:
            started = time.monotonic()
            if (record := self.store.find(spec.stage, spec.key)) is None:
                return None
            if self.store.find_current(spec.stage, spec.key) is None:
                self.store.discard(spec.stage, spec.key)
                return None
            self._records[spec.key] = record
            self._report(spec, "reused", started)
        return self._records[spec.key]

    def are_done(self, specs: Sequence[StageSpec]) -> bool:
        return all(self.reuse(spec) is not None for spec in specs)

    def output_of(self, spec: StageSpec) -> Path:
        """Run the stage, or reuse it; return its folder."""
        self.run_stage(spec)
        return self.store.stage_folder(spec.stage, spec.key) / "output"

    def find_finished(self, spec: StageSpec) -> StageRecord:
        """Return a finished stage's record, or raise StoreError."""
        record = self.store.find(spec.stage, spec.key)
        if record is None:
            raise StoreError(
                f"the stage '{spec.stage}' has vanished from the store",
                where=str(self.store.stage_folder(spec.stage, spec.key)),
                hint="run the command again",
            )
        self._records[spec.key] = record
        return record

    def needs_to_make(self, spec: StageSpec) -> Needs:
        """Return what a stage of making takes: no GPU waits while weights are checked."""
        is_quantized = spec.stage == QUANTIZE.name
        if self.is_on_gpus:
            return Needs(gpus=1) if is_quantized else NOTHING
        return Needs(cores=is_quantized or spec.stage == CHECK_WEIGHTS.name)

    def weights_bytes(self, variant: Arm) -> int | None:
        """Return the size of made weights, or None."""
        made = variant.stages.get(WEIGHTS)
        record = self.store.find(made.stage, made.key) if made else None
        return QUANTIZE.result_of(record).weights_bytes if record else None

    def answers(self, of: StageSpec | StageReference) -> list[Answer]:
        return read_answers(self.store.stage_folder(of.stage, of.key))

    def loads(self, spec: StageSpec) -> list[LoadRun]:
        return read_loads(self.store.stage_folder(spec.stage, spec.key) / LOADS)

    def with_runtime(self, spec: StageSpec, extra: Mapping[str, Any]) -> StageSpec:
        """Return the stage with further runtime values."""
        runtime = dict(spec.runtime)
        if "environment" in runtime:
            runtime["accelerator"] = str(self.accelerator)
            runtime["python"] = str(self.python_of(runtime["environment"]))
        return spec.model_copy(update={"runtime": {**runtime, **extra}})

    def _report(self, spec: StageSpec, status: StageStatus, started: float) -> None:
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

    # --- pieces ---------------------------------------------------------------------------------

    def lock_of(self, piece: Piece) -> Path:
        return self.store.root / LOCKS / piece.name

    def tell_of_waiting(self, who: str) -> None:
        """Tell once for whom this process waits."""
        if who not in self._told:
            self._told.add(who)
            self.progress.note(f"waiting for {who}; {HOW_TO_WAIT}")

    def wait_for_others(self, pieces: Sequence[Piece]) -> Piece | None:
        """Return a piece that no process does, or None after a while."""
        for piece in pieces:
            if not is_locked(self.lock_of(piece)):
                return piece
        self.workers.end()  # their memory may be what others need
        if who := holder_of(self.lock_of(pieces[0])):
            self.tell_of_waiting(who)
        time.sleep(POLL_S)
        return None

    def lose(self, piece: Piece, error: PrepareError) -> None:
        """Leave a piece to the process that took it over."""
        self.progress.note(f"{piece.title}: {error}")
        time.sleep(random.uniform(0, POLL_S))  # noqa: S311  # else two could stop each other
