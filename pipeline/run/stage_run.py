"""Runs single stages in this process, or reuses results."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from artifacts.run_record import StageReport, StageStatus
from eval_gates.answer_log import read_answers
from eval_gates.rows import Answer
from eval_gates.speed.load_run import LOADS, LoadRun, read_loads
from pipeline.environments.definition import Accelerator
from pipeline.plan.plan import Arm
from pipeline.run.recorder import RunRecorder
from pipeline.stages.block import BLOCK
from pipeline.stages.context import Servers, advance
from pipeline.stages.evaluate import EVALUATE
from pipeline.stages.quantize import QUANTIZE
from pipeline.stages.speed import SPEED
from prepare.errors import StoreError
from prepare.events import Progress
from prepare.interruption import is_interruption
from prepare.lots import NOTHING, Needs
from prepare.private_files import private_umask
from prepare.stage import StageRecord, StageReference, StageSpec
from prepare.store import Store

PythonOf = Callable[[str], Path]
ExtraRuntime = Callable[[], Mapping[str, Any]]


def title_of(spec: StageSpec) -> str:
    """Return the stage's title, with its suite or speed gate."""
    if spec.stage == EVALUATE.name:
        return f"{spec.stage} {EVALUATE.runtime_of(spec).suite}"
    if spec.stage == SPEED.name:
        return f"{spec.stage} {SPEED.runtime_of(spec).gate}"
    if spec.stage == BLOCK.name:
        return f"{BLOCK.runtime_of(spec).gate} block {BLOCK.parameters_of(spec).number + 1}"
    return spec.stage


@dataclass
class StageRunner:
    """Runner of stages that have to run.

    `python_of` returns an environment's interpreter; it is built on first use.
    """

    store: Store
    python_of: PythonOf
    log: RunRecorder
    progress: Progress
    accelerator: Accelerator = Accelerator.CPU
    _found: dict[str, StageRecord] = field(default_factory=dict, init=False)

    def run(
        self,
        spec: StageSpec,
        extra_runtime: ExtraRuntime | None = None,
        servers: Servers | None = None,
    ) -> StageRecord:
        """Run the stage, or reuse its result; raise the stage's error.

        `extra_runtime` is called if the stage must run, to open an endpoint.
        """
        if (record := self.reuse(spec)) is not None:
            return record
        ready = self.with_runtime(spec, extra_runtime() if extra_runtime else {})
        started = time.monotonic()
        self.log.note_running([f"{spec.variant}: {title_of(spec)}"])
        try:
            is_ours = self.do(ready, servers)
        except BaseException as error:
            self._report(spec, "interrupted" if is_interruption(error) else "failed", started)
            raise
        self._report(spec, "ran" if is_ours else "reused", started)
        return self.find_finished(spec)

    def do(self, spec: StageSpec, servers: Servers | None = None) -> bool:
        """Carry out a stage; return False if another process did."""
        with private_umask(self.store.root):
            return advance(spec, self.store, self.progress, servers)[1]

    def reuse(self, spec: StageSpec) -> StageRecord | None:
        """Return the stage's record, or remove remains."""
        if spec.key not in self._found:
            started = time.monotonic()
            if (record := self.store.find(spec.stage, spec.key)) is None:
                return None
            if self.store.find_current(spec.stage, spec.key) is None:
                self.store.discard(spec.stage, spec.key)
                return None
            self._found[spec.key] = record
            self._report(spec, "reused", started)
        return self._found[spec.key]

    def output_of(self, spec: StageSpec) -> Path:
        """Run the stage, or reuse it; return its folder."""
        self.run(spec)
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
        self._found[spec.key] = record
        return record

    def needs_to_make(self, made: Sequence[StageSpec]) -> Needs:
        """Return what unfinished stages of making take."""
        if not any(s.stage == QUANTIZE.name and self.reuse(s) is None for s in made):
            return NOTHING
        return Needs(gpus=1) if self.accelerator is Accelerator.CUDA else Needs(cores=True)

    def weights_bytes(self, variant: Arm) -> int | None:
        """Return the size of made weights, or None."""
        made = variant.stages.get(QUANTIZE.name)
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
