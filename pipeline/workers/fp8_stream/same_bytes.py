"""Comparison of two tensors' bytes in bounded memory."""

from __future__ import annotations

from pathlib import Path

from pipeline.checkpoint.safetensors_header import SafetensorsHeader

CHUNK_BYTES = 2**22

Place = tuple[Path, SafetensorsHeader]


def has_same_bytes(one: Place, one_name: str, other: Place, other_name: str) -> bool:
    """Compare two tensors, each given by its file with header, and its name."""
    first, second = one[1].tensors[one_name], other[1].tensors[other_name]
    if (first.dtype, first.size) != (second.dtype, second.size):
        return False
    with one[0].open("rb") as left, other[0].open("rb") as right:
        left.seek(one[1].data_start + first.begin)
        right.seek(other[1].data_start + second.begin)
        for start in range(0, first.size, CHUNK_BYTES):
            count = min(CHUNK_BYTES, first.size - start)
            if left.read(count) != right.read(count):
                return False
    return True
