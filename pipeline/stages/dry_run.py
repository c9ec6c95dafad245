"""Quantizes two layers of the checkpoint with few samples, before all of it.

What would fail after an hour fails here within a minute: an architecture that the quantizer does
not know, a group size that does not divide, experts that see no tokens, values that overflow. It is
the code of the stages `quantize` and `check_weights`, with the recipe's own settings, on a
checkpoint cut from the source. The weights are deleted afterwards, on failure too; record and log
stay.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.checkpoint.folder import Checkpoint, inspect_folder
from pipeline.core.digest import FileDigests
from pipeline.core.errors import PrepareError, StageError, StoreError
from pipeline.core.stage_record import StageRecord
from pipeline.inspection.cut_checkpoint import KEPT_LAYERS, cut_checkpoint
from pipeline.stages import stage_module
from pipeline.stages.context import StageContext

CUT = "cut"


@dataclass
class PartContext(StageContext):
    """One of the two stages inside the dry run: its parameters, and its input from memory.

    Args:
        part: name of the stage.
        checkpoint: the cut one.
        made: what `quantize` returned.
    """

    part: str = ""
    checkpoint: Checkpoint | None = None
    made: dict[str, Any] = field(default_factory=dict)

    def input_folder(self, role: str) -> Path:
        """The weights that were just made lie in this stage's own folder."""
        return self.folder

    def input_record(self, role: str) -> StageRecord:
        """The record that `quantize` would have left."""
        return StageRecord(
            **self.spec.model_dump(include={"variant", "key", "parameters"}),
            stage="quantize",
            inputs={},
            input_digests={},
            result=self.made,
            notes=[],
            seconds=0.0,
            finished="",
        )

    @property
    def runtime(self) -> dict[str, Any]:
        """As of the whole checkpoint, but for its place."""
        assert self.checkpoint is not None
        return {**self.spec.runtime, "checkpoint": self.checkpoint.model_dump(mode="json")}

    @property
    def parameters(self) -> dict[str, Any]:
        """Those of the stage that is tried."""
        parameters: dict[str, Any] = self.spec.parameters[self.part]
        return parameters

    def advance(self, task: str, done: int, total: int | None, unit: str = "") -> None:
        """Report progress, named as that of a dry run."""
        super().advance(f"dry run: {task}", done, total, unit)

    def note(self, text: str) -> None:
        """Say it as of a dry run; what a later line says of the whole checkpoint may differ."""
        super().note(f"dry run: {text}")


def run(context: StageContext) -> dict[str, Any]:
    """Cut, quantize, check, delete.

    Returns:
        the layers that were tried, their bytes, and the seconds that each step took.

    Raises:
        PrepareError: what went wrong, said to be of the dry run.
    """
    folder = context.folder / CUT
    source = Checkpoint.model_validate(context.runtime["checkpoint"])
    try:
        started = time.monotonic()
        cut = cut_checkpoint(source.path, folder)
        checkpoint = _inspect(source, folder)
        cutting = time.monotonic() - started
        made, quantizing = _part(context, "quantize", checkpoint, {})
        found, checking = _part(context, "check_weights", checkpoint, made)
    except PrepareError as error:
        raise explain(error, context) from error
    finally:
        for each in (folder, context.folder / "output"):
            shutil.rmtree(each, ignore_errors=True)
    return {
        "layers": list(cut.layers),
        "source_bytes": cut.weights_bytes,
        "weights_bytes": made["weights_bytes"],
        "seconds": {"cut": cutting, "quantize": quantizing, "check_weights": checking},
        "verified": found,
    }


def explain(error: PrepareError, context: StageContext) -> PrepareError:
    """The error, saying that it came up before the whole checkpoint was worked on."""
    kind = type(error) if isinstance(error, (StageError, StoreError)) else StageError
    return kind(
        f"the dry run on {KEPT_LAYERS} layers failed, the whole checkpoint was not tried: "
        f"{error.what}",
        where=error.where or str(context.folder),
        cure=error.cure or "fix the cause; to try the whole nevertheless, add --no-dry-run",
    )


def _part(
    context: StageContext, name: str, checkpoint: Checkpoint, made: dict[str, Any]
) -> tuple[dict[str, Any], float]:
    """Run one of the two stages on the cut checkpoint; its result, and its seconds."""
    started = time.monotonic()
    part = PartContext(
        spec=context.spec,
        folder=context.folder,
        store=context.store,
        progress=context.progress,
        notes=context.notes,
        part=name,
        checkpoint=checkpoint,
        made=made,
    )
    result: dict[str, Any] = stage_module(name).run(part)
    context.peak_memory_bytes = part.peak_memory_bytes or context.peak_memory_bytes
    return result, time.monotonic() - started


def _inspect(source: Checkpoint, folder: Path) -> Checkpoint:
    """The cut checkpoint as a checkpoint of its own, seen to be whole."""
    return inspect_folder(
        folder,
        ref=f"{source.ref}, cut",
        kind="folder",
        revision=None,
        digests=FileDigests(folder / "digests.cache"),
    )
