"""How many bytes a variant's weights will take, from the source's headers alone."""

from __future__ import annotations

import json
from pathlib import Path

from pipeline.safetensors_header import Tensor, read_header
from pipeline.stages.verify import is_quantizable
from pipeline.weight_files import weight_files
from recipes.schema import AwqQuantization, NoQuantization, Quantization

SCALE_BYTES = 2  # scales are kept in the source's 16-bit type
SHAPE_BYTES = 16  # compressed-tensors keeps the unpacked shape as two 64-bit numbers


def estimated_bytes(folder: Path, quantization: Quantization) -> int:
    """Bytes of the quantized weights, headers left out.

    Raises:
        CheckpointError: the source's files are missing or damaged.
    """
    return sum(
        quantized_bytes(tensor, quantization)
        if not isinstance(quantization, NoQuantization)
        and is_quantizable(name, tensor, quantization.ignore)
        else tensor.end - tensor.begin
        for path in weight_files(folder)
        for name, tensor in read_header(path).tensors.items()
        if not is_stored_twice(name, folder)
    )


def quantized_bytes(tensor: Tensor, quantization: Quantization) -> int:
    """Bytes of one linear layer's matrix with its scales and zero points."""
    rows, columns = tensor.shape
    if not isinstance(quantization, AwqQuantization):
        return rows * columns + SCALE_BYTES * rows
    groups = rows * (columns // dividing_group_size(columns, quantization))
    zero_points = 0 if quantization.symmetric else groups * quantization.bits // 8
    weights = rows * columns * quantization.bits // 8
    return weights + SCALE_BYTES * groups + zero_points + SHAPE_BYTES


def dividing_group_size(columns: int, quantization: AwqQuantization) -> int:
    """The largest of the recipe's group sizes that divides; the whole row where none does."""
    for size in (quantization.group_size, *quantization.smaller_group_sizes):
        if columns % size == 0:
            return size
    return columns


def is_stored_twice(name: str, folder: Path) -> bool:
    """A tied output head that the source stores beside the embeddings is saved once."""
    if not name.startswith("lm_head"):
        return False
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return bool(config.get("tie_word_embeddings", False))
