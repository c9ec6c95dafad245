"""Converts a checkpoint to 16 bits by compressed-tensors."""

from __future__ import annotations

from pydantic import Field

from pipeline.stages.context import StageContext
from prepare.errors import StageError
from prepare.record import Record
from prepare.stage import Stage, WorkerRuntime
from recipes.checkpoints.checkpoint import CheckpointFolder, read_folder
from recipes.checkpoints.dequantized_source import dequantized
from recipes.checkpoints.source_format import Converter


class DequantizeParameters(Record):
    """What is converted."""

    checkpoint: str = Field(description="digest of the source")
    converter: Converter
    environment: str = Field(description="identity of the one that converts")


class DequantizeRuntime(WorkerRuntime):
    """Place of the source."""

    checkpoint: CheckpointFolder


class DequantizeResult(Record):
    """What was converted."""

    tensors: int = Field(description="of the 16-bit checkpoint")
    versions: dict[str, str] = Field(description="of the libraries")


DEQUANTIZE = Stage("dequantize", 1, DequantizeParameters, DequantizeRuntime, DequantizeResult)


def run(context: StageContext[DequantizeParameters, DequantizeRuntime]) -> DequantizeResult:
    """Convert, and check names, shapes and types only."""
    source = context.runtime.checkpoint
    output = context.output_folder()
    facts = context.run_worker(
        "recipes.checkpoints.dequantize_worker",
        {
            "source": str(source.path),
            "files": list(source.names),
            "converter": context.parameters.converter,
        },
        output=output,
    )
    made = read_folder(output)
    expected, written = (
        {name: (tensor.shape, tensor.dtype) for name, tensor in checkpoint.tensors.items()}
        for checkpoint in (dequantized(read_folder(source.path)), made)
    )
    wrong = sorted(
        name for name in {*expected, *written} if expected.get(name) != written.get(name)
    )
    if wrong or made.format is not None:
        raise StageError(
            f"the conversion to 16 bits is not complete: '{(wrong or ['config.json'])[0]}' differs "
            "from what the source's headers imply",
            where=str(output),
            hint="start from the 16-bit checkpoint, if there is one",
        )
    return DequantizeResult(tensors=len(written), **facts)
