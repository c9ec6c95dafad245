"""Worker: 16-bit weights of a quantized checkpoint, file by file, by compressed-tensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pipeline.core.events import Progress
from pipeline.workers.protocol import versions_of

INPUT_SCALES = ("input_scale", "input_global_scale", "input_zero_point", "q_scale")
LIBRARIES = ("compressed-tensors", "torch")


def run(spec: dict[str, Any], progress: Progress, output: Path) -> dict[str, Any]:
    """Convert `source`, a folder of links, into `output`.

    Args:
        spec: source, converter (see `SourceFormat`), unquantized (modules without scales), between
            (folder for AWQ's intermediate form).
    """
    from compressed_tensors.entrypoints.convert import convert_checkpoint

    source = spec["source"]
    progress.note("converting the checkpoint to 16 bits")
    if spec["converter"] == "fp8-block":
        convert_checkpoint(source, output, fp8_block(source, spec["unquantized"]))
    else:
        if spec["converter"] == "awq":
            convert_checkpoint(source, spec["between"], awq(source))
            source = spec["between"]
        convert_checkpoint(source, output, compressed(source, spec["unquantized"]))
    return {"versions": versions_of(*LIBRARIES)}


def fp8_block(source: str, unquantized: list[str]) -> Any:
    """Return the converter of DeepSeek's and Qwen's FP8 in blocks."""
    from compressed_tensors.entrypoints.convert import FP8BlockDequantizer

    size = quantization_config(source)["weight_block_size"]
    return FP8BlockDequantizer(ignore=unquantized, weight_block_size=tuple(size))


def awq(source: str) -> Any:
    """Return the converter of AutoAWQ's layout to compressed-tensors'."""
    from compressed_tensors.entrypoints.convert import AutoAWQConverter

    return AutoAWQConverter.from_autoawq_config(quantization_config(source))


def compressed(source: str, unquantized: list[str]) -> Any:
    """Return the converter of compressed-tensors' formats.

    The library's own refuses static scales of activations, which 16-bit weights do not have.
    """
    from compressed_tensors.entrypoints.convert import CompressedTensorsDequantizer

    class WithoutInputScales(CompressedTensorsDequantizer):  # type: ignore[misc]
        """Drops the scales of activations."""

        def process(self, tensors: dict[str, Any]) -> dict[str, Any]:
            """Convert one file's tensors."""
            kept = {n: t for n, t in tensors.items() if n.rpartition(".")[2] not in INPUT_SCALES}
            found: dict[str, Any] = super().process(kept)
            return found

    return WithoutInputScales(source, ignore=unquantized)


def quantization_config(source: str) -> dict[str, Any]:
    """Return config.json's key."""
    config = json.loads((Path(source) / "config.json").read_text(encoding="utf-8"))
    found: dict[str, Any] = config["quantization_config"]
    return found
