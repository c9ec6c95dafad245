"""The place of every byte of the output, computed from the input's headers.

So each piece of a tensor can be read, cast and written separately, in any order, by any thread.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from pipeline.checkpoint.safetensors_header import DTYPE_BITS, SafetensorsHeader, header_bytes
from pipeline.inspection.linear_layers import WEIGHT

FP8 = "F8_E4M3"
BLOCK = 128  # rows and columns of a block, by DeepSeek-V3's layout and the preset FP8_BLOCK
# Scales a weight has, by preset: one a row, or one a block.
SCHEMES = ("FP8_DYNAMIC", "FP8_BLOCK")
_WIDEST_FIRST = {dtype: -place for place, dtype in enumerate(DTYPE_BITS)}


@dataclass(frozen=True)
class Chunk:
    """A range of a source tensor's bytes, and its place in the output."""

    begin: int  # offset in the source file
    size: int  # bytes there
    target: int  # offset in the output file of its data
    dtype: str  # of the source
    rows: int = 0  # whole ones of a matrix to cast; 0 where the bytes are copied as they are
    columns: int = 0  # of a matrix to cast
    scale_target: int = 0  # offset in the output file of its scales


@dataclass(frozen=True)
class ShardPlan:
    """One output file, made from one input file."""

    name: str  # of both files
    source: Path  # path of the input
    header: bytes  # first bytes of the output, up to its data
    size: int  # of the output in bytes
    moves: list[Chunk]  # whole tensors, in the order in which their bytes lie in the output
    tensors: dict[str, int]  # bytes of each tensor of the output by name

    @property
    def source_bytes(self) -> int:
        return sum(move.size for move in self.moves)

    @property
    def quantized(self) -> int:
        return sum(move.rows > 0 for move in self.moves)


def plan_shard(
    source: Path,
    header: SafetensorsHeader,
    scheme: str,
    quantized: Collection[str],
    left_out: Collection[str] = (),
) -> ShardPlan | None:
    """Lay out the output of one input file; None if nothing of it is left.

    The tensors are ordered as by the safetensors library: widest type first, then by name.

    Args:
        quantized: names of the tensors to cast.
        left_out: names of those that the output does not have.
    """
    entries: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name, tensor in header.tensors.items():
        if name in left_out:
            continue
        entries[name] = (FP8 if name in quantized else tensor.dtype, tensor.shape)
        if name in quantized:
            entries[scale_name(name)] = (tensor.dtype, scale_shape(scheme, tensor.shape))
    if not entries:
        return None
    order = sorted(entries, key=lambda name: (_WIDEST_FIRST[entries[name][0]], name))
    places: dict[str, tuple[int, int]] = {}
    position = 0
    for name in order:
        dtype, shape = entries[name]
        size = byte_size(dtype, shape)
        places[name] = (position, position + size)
        position += size
    head = header_bytes({name: (*entries[name], places[name]) for name in order})
    moves = []
    for name in order:
        if name not in header.tensors:
            continue  # a scale, written along with its weight
        tensor = header.tensors[name]
        begin, target = header.data_start + tensor.begin, len(head) + places[name][0]
        rows = columns = scale_target = 0
        if name in quantized:
            rows, columns = tensor.shape
            scale_target = len(head) + places[scale_name(name)][0]
        moves.append(Chunk(begin, tensor.size, target, tensor.dtype, rows, columns, scale_target))
    sizes = {name: end - begin for name, (begin, end) in places.items()}
    return ShardPlan(source.name, source, head, len(head) + position, moves, sizes)


def scale_name(weight: str) -> str:
    """Name of the scales of a weight, as compressed-tensors has it."""
    return f"{weight.removesuffix(WEIGHT)}.weight_scale"


def scale_shape(scheme: str, shape: tuple[int, ...]) -> tuple[int, int]:
    """Shape of a matrix's scales: one a row, or one a block of which the last may be cut."""
    rows, columns = shape
    return (rows, 1) if scheme == "FP8_DYNAMIC" else (-(-rows // BLOCK), -(-columns // BLOCK))


def byte_size(dtype: str, shape: tuple[int, ...]) -> int:
    """Bytes that a tensor takes."""
    return math.prod(shape) * DTYPE_BITS[dtype] // 8


def pieces(move: Chunk, scheme: str, piece_bytes: int) -> Iterator[Chunk]:
    """Cut a tensor into whole rows (or blocks of rows) of about `piece_bytes`, or plain bytes."""
    if not move.rows:
        for start in range(0, move.size, piece_bytes):
            size = min(piece_bytes, move.size - start)
            yield Chunk(move.begin + start, size, move.target + start, move.dtype)
        return
    row_bytes = move.size // move.rows
    scale_bytes = DTYPE_BITS[move.dtype] // 8
    step = 1 if scheme == "FP8_DYNAMIC" else BLOCK
    scales_a_step = scale_shape(scheme, (step, move.columns))[1]
    rows_a_piece = max(step, piece_bytes // row_bytes // step * step)
    for first in range(0, move.rows, rows_a_piece):
        rows = min(rows_a_piece, move.rows - first)
        yield Chunk(
            begin=move.begin + first * row_bytes,
            size=rows * row_bytes,
            target=move.target + first * move.columns,
            dtype=move.dtype,
            rows=rows,
            columns=move.columns,
            scale_target=move.scale_target + first // step * scales_a_step * scale_bytes,
        )
