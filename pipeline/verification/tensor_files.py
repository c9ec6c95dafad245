"""Tensors of a checkpoint's folder, read a few rows at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipeline.checkpoint.safetensors_header import DTYPE_BITS
from pipeline.checkpoint.weight_files import INDEX, read_headers, read_index
from pipeline.core.errors import VerificationError
from pipeline.verification.number_types import Bytes, Floats, to_float32

BLOCK_BYTES = 8 * 2**20


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file."""

    name: str  # name in the checkpoint
    dtype: str  # safetensors' name of the type
    shape: tuple[int, ...]  # outermost dimension first
    path: Path  # of the file
    offset: int  # first byte in the file

    @property
    def size(self) -> int:
        return math.prod(self.shape) * DTYPE_BITS[self.dtype] // 8

    def read(self, begin: int = 0, end: int | None = None) -> Bytes:
        """Return the bytes of rows `begin` to `end`, or of the whole scalar."""
        rows = self.shape[0] if self.shape else 1
        end = rows if end is None else min(end, rows)
        row_bytes = self.size // rows if rows else 0
        count = max(0, end - begin) * row_bytes
        raw = np.fromfile(self.path, np.uint8, count, offset=self.offset + begin * row_bytes)
        if len(raw) != count:
            raise VerificationError(
                f"'{self.name}' is truncated", where=str(self.path), hint="quantize again"
            )
        return raw

    def floats(self, begin: int = 0, end: int | None = None) -> Floats:
        values = to_float32(self.read(begin, end), self.dtype)
        return values.reshape(-1, *self.shape[1:]) if self.shape else values

    def rows(self, begin: int, end: int) -> Floats:
        return self.floats(begin, end)

    def blocks(self) -> Iterator[bytes]:
        """Yield all bytes, a few megabytes at a time."""
        left = self.size
        with self.path.open("rb") as file:
            file.seek(self.offset)
            while left:
                block = file.read(min(left, BLOCK_BYTES))
                if not block:
                    raise VerificationError(f"'{self.name}' is truncated", where=str(self.path))
                left -= len(block)
                yield block


@dataclass(frozen=True)
class TensorFiles:
    """All tensors of a checkpoint folder by name."""

    folder: Path
    tensors: dict[str, StoredTensor]

    @property
    def size(self) -> int:
        return sum(tensor.size for tensor in self.tensors.values())


def open_folder(folder: Path) -> TensorFiles:
    """Read a checkpoint's headers, and check that index and files agree."""
    tensors: dict[str, StoredTensor] = {}
    for path, header in read_headers(folder).items():
        for name, tensor in header.tensors.items():
            if name in tensors:
                raise VerificationError(
                    f"'{name}' is in two files, {tensors[name].path.name} and {path.name}",
                    where=str(folder),
                )
            offset = header.data_start + tensor.begin
            tensors[name] = StoredTensor(name, tensor.dtype, tensor.shape, path, offset)
    _check_all_named(folder, tensors)
    return TensorFiles(folder, tensors)


def _check_all_named(folder: Path, tensors: dict[str, StoredTensor]) -> None:
    index = folder / INDEX
    if not index.exists():
        return
    weight_map = read_index(index)
    for name, tensor in tensors.items():
        if weight_map.get(name) != tensor.path.name:
            raise VerificationError(
                f"'{name}' is in {tensor.path.name}, but not according to the index",
                where=str(index),
            )
