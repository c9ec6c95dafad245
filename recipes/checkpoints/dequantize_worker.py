"""Worker: 16-bit weights of a quantized checkpoint, by compressed-tensors."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from prepare.events import Progress
from prepare.untrusted import read_json_file
from prepare.worker_protocol import versions_of
from recipes.checkpoints.weight_files import read_headers

INPUT_SCALES = ("input_scale", "input_global_scale", "input_zero_point", "q_scale")
LIBRARIES = ("compressed-tensors", "torch")


def run(spec: dict[str, Any], progress: Progress, output: Path) -> dict[str, Any]:
    """Convert a checkpoint into `output`.

    `spec`: source (folder), files (names), converter (see `SourceFormat`).
    """
    progress.note("converting the checkpoint to 16 bits")
    convert(Path(spec["source"]), spec["files"], spec["converter"], output)
    return {"versions": versions_of(*LIBRARIES)}


def convert(source: Path, files: Iterable[str], converter: str, output: Path) -> None:
    """Write 16-bit weights, config and other files into `output`.

    The library would convert other files than `files`, too.
    """
    from compressed_tensors.entrypoints.convert import convert_checkpoint

    with tempfile.TemporaryDirectory(dir=output.parent) as temporary:
        place = Path(temporary) / "source"
        between = Path(temporary) / "between"
        place.mkdir()
        for name in files:
            (place / name).parent.mkdir(exist_ok=True)
            (place / name).symlink_to(os.path.realpath(source / name))
        plain = unquantized_modules(place)
        if converter == "fp8-block":
            convert_checkpoint(place, output, fp8_block(place, plain))
            return
        if converter == "awq":
            convert_checkpoint(place, between, awq(place))
            place = between
        convert_checkpoint(place, output, compressed(place, plain))


def unquantized_modules(folder: Path) -> list[str]:
    """Return modules that converters must skip: their weight has no scale."""
    names = {name for header in read_headers(folder).values() for name in header.tensors}
    modules = (name.removesuffix(".weight") for name in names if name.endswith(".weight"))
    scales = ("weight_scale", "weight_scale_inv")
    return sorted(m for m in modules if not any(f"{m}.{scale}" in names for scale in scales))


def fp8_block(source: Path, unquantized: list[str]) -> Any:
    """Return the converter of FP8 in blocks (DeepSeek, Qwen)."""
    from compressed_tensors.entrypoints.convert import FP8BlockDequantizer

    size = quantization_config(source)["weight_block_size"]
    return FP8BlockDequantizer(ignore=unquantized, weight_block_size=tuple(size))


def awq(source: Path) -> Any:
    """Return the converter of AutoAWQ's layout to compressed-tensors'."""
    from compressed_tensors.entrypoints.convert import AutoAWQConverter

    return AutoAWQConverter.from_autoawq_config(quantization_config(source))


def compressed(source: Path, unquantized: list[str]) -> Any:
    """Return the converter of compressed-tensors' formats.

    The library's own refuses static scales of activations.
    """
    from compressed_tensors.entrypoints.convert import CompressedTensorsDequantizer

    class WithoutInputScales(CompressedTensorsDequantizer):  # type: ignore[misc]
        """Drops the scales of activations."""

        def process(self, tensors: dict[str, Any]) -> dict[str, Any]:
            kept = {n: t for n, t in tensors.items() if n.rpartition(".")[2] not in INPUT_SCALES}
            processed: dict[str, Any] = super().process(kept)
            return processed

    return WithoutInputScales(source, ignore=unquantized)


def quantization_config(source: Path) -> dict[str, Any]:
    """Return config.json's key."""
    config = read_json_file(source / "config.json", finite=False)
    quantization: dict[str, Any] = config["quantization_config"]
    return quantization
