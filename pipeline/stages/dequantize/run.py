"""Converts a checkpoint to 16 bits by compressed-tensors."""

from __future__ import annotations

from pipeline.core.errors import StageError
from pipeline.stages.context import StageContext
from pipeline.stages.dequantize import (
    DequantizeParameters,
    DequantizeResult,
    DequantizeRuntime,
)
from recipes.checkpoints.dequantized_source import dequantized
from recipes.checkpoints.header_source import read_folder


def run(context: StageContext[DequantizeParameters, DequantizeRuntime]) -> DequantizeResult:
    """Convert, and check names, shapes and types only."""
    source = context.runtime.checkpoint
    output = context.output_folder()
    facts = context.run_worker(
        "recipes.checkpoints.dequantize_worker",
        {
            "source": str(source.path),
            "files": [file.name for file in source.files],
            "converter": context.parameters.converter,
        },
        output=output,
    )
    made = read_folder(output)
    expected, found = (
        {name: (tensor.shape, tensor.dtype) for name, tensor in each.tensors.items()}
        for each in (dequantized(read_folder(source.path)), made)
    )
    wrong = sorted(name for name in {*expected, *found} if expected.get(name) != found.get(name))
    if wrong or made.format is not None:
        raise StageError(
            f"the conversion to 16 bits is not complete: '{(wrong or ['config.json'])[0]}' differs "
            "from what the source's headers imply",
            where=str(output),
            hint="start from the 16-bit checkpoint, if there is one",
        )
    return DequantizeResult(tensors=len(found), **facts)
