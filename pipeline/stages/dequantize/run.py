"""Converts a checkpoint to 16 bits into `output/`, by compressed-tensors."""

from __future__ import annotations

import shutil
from pathlib import Path

from pipeline.core.errors import StageError, StoreError
from pipeline.inspection.dequantized_source import dequantized
from pipeline.inspection.header_source import HeaderSource, read_folder
from pipeline.stages.context import StageContext
from pipeline.stages.dequantize import (
    DequantizeParameters,
    DequantizeResult,
    DequantizeRuntime,
)


def run(context: StageContext[DequantizeParameters, DequantizeRuntime]) -> DequantizeResult:
    """Convert, and compare names and shapes with those that the source's headers imply.

    The variants' gates compare with the released weights, so they see wrong numbers.
    """
    source = context.runtime.checkpoint
    output = context.output_folder()
    expected = dequantized(read_folder(source.path))
    check_space(output, expected)
    facts = context.run_worker(
        "pipeline.workers.dequantize",
        {
            "source": str(source.path),
            "files": [file.name for file in source.files],
            "converter": context.parameters.converter,
        },
        output=output,
    )
    found = read_folder(output)
    check_same(expected, found, output)
    return DequantizeResult(tensors=len(found.tensors), **facts)


def check_space(folder: Path, expected: HeaderSource) -> None:
    """Raise StoreError if the 16-bit weights do not fit on the disk."""
    free = shutil.disk_usage(folder).free
    if free < expected.weights_bytes:
        raise StoreError(
            f"the 16-bit weights need {expected.weights_bytes / 1e9:.1f} GB, "
            f"the disk has {free / 1e9:.1f}",
            where=str(folder),
            hint="free some space, or name another place with --store DIR",
        )


def check_same(expected: HeaderSource, found: HeaderSource, folder: Path) -> None:
    """Raise StageError unless all tensors are there, in their shapes and in no narrow type."""
    shapes = {name: tensor.shape for name, tensor in expected.tensors.items()}
    made = {name: tensor.shape for name, tensor in found.tensors.items()}
    wrong = sorted(name for name in {*shapes, *made} if shapes.get(name) != made.get(name))
    narrow = (
        sorted(
            name
            for name, tensor in found.tensors.items()
            if tensor.dtype != expected.tensors[name].dtype
        )
        if not wrong
        else []
    )
    if wrong or narrow or found.format is not None:
        name = (wrong or narrow or ["config.json"])[0]
        raise StageError(
            f"the conversion to 16 bits is not complete: '{name}' differs from what the source's "
            "headers imply",
            where=str(folder),
            hint="start from the 16-bit checkpoint, if there is one",
        )
