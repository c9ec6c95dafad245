"""Tensors of a checkpoint's folder, by its headers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from pipeline.checkpoint.safetensors_header import DTYPE_BITS
from pipeline.checkpoint.weight_files import INDEX, read_headers, read_index
from pipeline.core.errors import VerificationError


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

    def is_zero(self) -> bool:
        """Return whether all bytes are 0; it reads the whole tensor."""
        with self.path.open("rb") as file:
            file.seek(self.offset)
            return not any(file.read(self.size))


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
