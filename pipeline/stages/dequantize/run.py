"""Converts a checkpoint to 16 bits into `output/`, by compressed-tensors or by our readers."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from pipeline.core.errors import StageError, StoreError
from pipeline.inspection.dequantized_source import dequantized
from pipeline.inspection.header_source import HeaderSource, read_folder
from pipeline.stages.context import StageContext
from pipeline.stages.dequantize import (
    DequantizeParameters,
    DequantizeResult,
    DequantizeRuntime,
)
from pipeline.stages.dequantize.layouts import convert


def run(context: StageContext[DequantizeParameters, DequantizeRuntime]) -> DequantizeResult:
    """Convert, and compare names and shapes with those that the source's headers imply.

    The variants' gates compare with the released weights, so they see wrong numbers.
    """
    source = context.runtime.checkpoint
    output = context.output_folder()
    expected = dequantized(read_folder(source.path))
    check_space(output, expected)
    with tempfile.TemporaryDirectory(dir=context.folder) as temporary:
        # Only the files that were inspected: the library follows what it finds.
        place = Path(temporary) / "source"
        place.mkdir()
        for file in source.files:
            (place / file.name).symlink_to(os.path.realpath(source.path / file.name))
        if context.parameters.converter == "readers":
            convert(
                place,
                output,
                expected.tensors,
                lambda done, total: context.advance("convert to 16 bits", done, total, "bytes"),
            )
            facts: dict[str, Any] = {"versions": {}}
        else:
            facts = context.run_worker(
                "pipeline.workers.dequantize",
                {
                    "source": str(place),
                    "between": str(Path(temporary) / "between"),
                    "converter": context.parameters.converter,
                    "unquantized": unquantized_modules(read_folder(source.path)),
                },
                output=output,
            )
    found = read_folder(output)
    check_same(expected, found, output)
    return DequantizeResult(tensors=len(found.tensors), **facts)


def unquantized_modules(source: HeaderSource) -> list[str]:
    """Return the modules with a weight and no scale of it, which the converters must skip."""
    modules = (n.removesuffix(".weight") for n in source.tensors if n.endswith(".weight"))
    scales = ("weight_scale", "weight_scale_inv")
    return [m for m in modules if not any(f"{m}.{scale}" in source.tensors for scale in scales)]


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
