"""Quantizes two layers of the checkpoint with few samples, before all of it.

What would fail after an hour fails here within a minute: an unsupported architecture, a group size
that does not divide, experts without tokens, values that overflow. It runs the code of the stages
`quantize` and `check_weights`, with the recipe's settings, on a checkpoint cut from the source. The
weights are deleted afterwards, on failure too; record and log stay.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.checkpoint.folder import Checkpoint, inspect_folder
from pipeline.core.errors import PrepareError, StageError, StoreError
from pipeline.core.file_digests import FileDigests
from pipeline.core.record import Record
from pipeline.core.stage_record import StageRecord
from pipeline.inspection.truncated_checkpoint import RETAINED_LAYERS, cut_checkpoint
from pipeline.stages.check_weights import CheckWeightsRuntime
from pipeline.stages.check_weights import run as check_weights
from pipeline.stages.context import StageContext
from pipeline.stages.dry_run import DryRunParameters, DryRunResult
from pipeline.stages.quantize import QuantizeRuntime
from pipeline.stages.quantize import run as quantize

CUT = "cut"


@dataclass
class SubStageContext(StageContext[Any, Any]):
    """One of the two stages inside the dry run.

    Args:
        place: its runtime, with the cut checkpoint.
        made: what `quantize` returned.
    """

    asked: Record | None = None
    place: Record | None = None
    made: Record | None = None

    def input_folder(self, role: str) -> Path:
        """Return this stage's own folder, which has the new weights."""
        return self.folder

    def input_record(self, role: str) -> StageRecord:
        """Return the record that `quantize` would have left."""
        assert self.made is not None
        return StageRecord(
            **self.spec.model_dump(include={"variant", "key", "parameters"}),
            stage="quantize",
            inputs={},
            input_digests={},
            result=self.made.model_dump(mode="json"),
            notes=[],
            seconds=0.0,
            finished="",
        )

    @property
    def runtime(self) -> Any:
        return self.place

    @property
    def parameters(self) -> Any:
        return self.asked

    def advance(self, task: str, done: int, total: int | None, unit: str = "") -> None:
        super().advance(f"dry run: {task}", done, total, unit)

    def note(self, text: str) -> None:
        """Report a note as of a dry run; the whole checkpoint may have another."""
        super().note(f"dry run: {text}")


def run(context: StageContext[DryRunParameters, QuantizeRuntime]) -> DryRunResult:
    """Cut, quantize, check, delete.

    Raises:
        PrepareError: the failure, marked as of the dry run.
    """
    folder, wanted = context.folder / CUT, context.parameters
    source = context.runtime.checkpoint
    try:
        started = time.monotonic()
        cut = cut_checkpoint(source.path, folder)
        checkpoint = _inspect(source, folder)
        began = time.monotonic()
        place = context.runtime.model_copy(update={"checkpoint": checkpoint})
        first = _part(context, wanted.quantize, place)
        made = quantize.run(first)
        context.peak_memory_bytes = first.peak_memory_bytes
        quantized = time.monotonic()
        at_cut = CheckWeightsRuntime(checkpoint=checkpoint)
        found = check_weights.run(_part(context, wanted.check_weights, at_cut, made))
        checked = time.monotonic()
    except PrepareError as error:
        raise explain(error, context) from error
    finally:
        for each in (folder, context.folder / "output"):
            shutil.rmtree(each, ignore_errors=True)
    return DryRunResult(
        layers=list(cut.layers),
        source_bytes=cut.weights_bytes,
        weights_bytes=made.weights_bytes,
        seconds={
            "cut": began - started,
            "quantize": quantized - began,
            "check_weights": checked - quantized,
        },
        verified=found,
    )


def explain(error: PrepareError, context: StageContext[Any, Any]) -> PrepareError:
    """Return the error, marked as of the dry run."""
    kind = type(error) if isinstance(error, (StageError, StoreError)) else StageError
    return kind(
        f"the dry run on {RETAINED_LAYERS} layers failed, the whole checkpoint was not tried: "
        f"{error.message}",
        where=error.where or str(context.folder),
        hint=error.hint or "fix the cause; to try the whole anyway, add --no-dry-run",
    )


def _part(
    context: StageContext[Any, Any], asked: Record, place: Record, made: Record | None = None
) -> SubStageContext:
    return SubStageContext(
        spec=context.spec,
        folder=context.folder,
        store=context.store,
        progress=context.progress,
        notes=context.notes,
        asked=asked,
        place=place,
        made=made,
    )


def _inspect(source: Checkpoint, folder: Path) -> Checkpoint:
    return inspect_folder(
        folder,
        ref=f"{source.ref}, cut",
        kind="folder",
        revision=None,
        digests=FileDigests(folder / "digests.cache"),
    )
