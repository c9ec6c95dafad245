"""Headers of .safetensors files.

A file has 8 bytes little-endian length N, N bytes of JSON, then data. Offsets count from the JSON's
end and cover the data without gap or overlap.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prepare.errors import CheckpointError, raise_as
from prepare.untrusted import open_regular, parse_json

PREFIX_BYTES = 8
# The safetensors library allows 100 MB, which takes a gigabyte to parse. This limit allows more
# than 100,000 tensors.
MAX_HEADER_BYTES = 40_000_000
MAX_NAME_CHARACTERS = 1_000
MAX_DIMENSIONS = 64  # torch's limit; bounds the product of a malicious shape
METADATA_KEY = "__metadata__"
# Bits of an element, from safetensors 0.8.
DTYPE_BITS = {
    "F4": 4,
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0"), 8),
    **dict.fromkeys(("F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("C64", "F64", "I64", "U64"), 64),
}
DOWNLOAD_AGAIN = "download the file again"


@dataclass(frozen=True)
class TensorEntry:
    """Type, shape and position of a tensor."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def size(self) -> int:
        return self.end - self.begin


@dataclass(frozen=True)
class SafetensorsHeader:
    """Header of a .safetensors file."""

    tensors: dict[str, TensorEntry]  # by name; offsets count from `data_start`
    data_start: int  # offset in the file of the first tensor byte


def read_header(path: Path) -> SafetensorsHeader:
    """Return a consistent header that fits the file size."""
    with (
        raise_as(CheckpointError, "the weights cannot be read", path),
        open_regular(path, None) as file,
    ):
        size = os.fstat(file.fileno()).st_size
        prefix = file.read(PREFIX_BYTES)
        if prefix == b"version ":
            raise CheckpointError(
                "the file is a Git LFS pointer, not the weights themselves",
                where=str(path),
                hint=f"fetch the weights: git -C {path.parent} lfs pull",
            )
        length = int.from_bytes(prefix, "little")
        if size < PREFIX_BYTES:
            raise _damage(f"the file has {size} bytes, too few for a safetensors file", path)
        if length > MAX_HEADER_BYTES:
            raise _damage(f"its header has {length} bytes; the limit is {MAX_HEADER_BYTES}", path)
        data_start = PREFIX_BYTES + length
        _check_size(size, data_start, path, exact=False)
        text = file.read(length)
    try:
        entries = parse_json(text)
    except ValueError as error:
        raise _damage(f"its header is not valid JSON ({error})", path) from error
    if not isinstance(entries, dict):
        raise _damage("its header is not a JSON object", path)
    metadata = entries.pop(METADATA_KEY, {})
    if not isinstance(metadata, dict) or not all(isinstance(m, str) for m in metadata.values()):
        raise _damage(f"its {METADATA_KEY} does not map text to text", path)
    tensors = {name: check_tensor(name, entry, path) for name, entry in entries.items()}
    position = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
        if tensor.begin != position:
            fault = "overlap" if tensor.begin < position else "leave a gap"
            raise _damage(f"its tensors {fault} at '{name}'", path)
        position = tensor.end
    _check_size(size, data_start + position, path, exact=True)
    return SafetensorsHeader(tensors, data_start)


def _check_size(size: int, needed: int, path: Path, *, exact: bool) -> None:
    if size < needed or (exact and size != needed):
        truncated = ": it is truncated" if size < needed else ""
        raise _damage(f"the file has {size} bytes, its header requires {needed}{truncated}", path)


def check_tensor(name: str, entry: Any, path: Path) -> TensorEntry:
    """Return one entry of a header, or raise CheckpointError."""
    if len(name) > MAX_NAME_CHARACTERS:
        raise _damage(f"a tensor's name has more than {MAX_NAME_CHARACTERS} characters", path)
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise _damage(f"the entry of tensor '{name}' lacks dtype, shape or data_offsets", path)
    dtype = entry["dtype"]
    shape = entry["shape"]
    offsets = entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise _damage(f"tensor '{name}' has the unknown type {str(dtype)[:80]!r}", path)
    if not _are_sizes(shape):
        raise _damage(f"tensor '{name}' has the shape {str(shape)[:80]}", path)
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise _damage(f"tensor '{name}' has the offsets {str(offsets)[:80]}", path)
    tensor = TensorEntry(dtype, tuple(shape), *offsets)
    taken = tensor.size * 8
    needed = tensor.elements * DTYPE_BITS[dtype]
    if taken != needed:
        raise _damage(f"tensor '{name}' takes {taken} bits; its type and shape need {needed}", path)
    return tensor


def _are_sizes(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) <= MAX_DIMENSIONS
        and all(type(item) is int and 0 <= item < 2**63 for item in value)
    )


def _damage(what: str, path: Path) -> CheckpointError:
    return CheckpointError(f"the weights are damaged: {what}", where=str(path), hint=DOWNLOAD_AGAIN)
