"""Reading, checking and writing of .safetensors headers, without torch and tensor data.

The format: 8 bytes little-endian length N, N bytes of JSON, then tensor data. The header's offsets
count from the end of the JSON and cover the data without gap or overlap.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.core.errors import CheckpointError, raise_as
from pipeline.core.untrusted import open_regular, parse_json

PREFIX_BYTES = 8
# The safetensors library allows 100 MB, which takes a gigabyte to parse. This limit allows more
# than 100,000 tensors.
MAX_HEADER_BYTES = 40_000_000
MAX_NAME_CHARACTERS = 1_000
MAX_DIMENSIONS = 64  # torch's limit; bounds the product of a malicious shape
METADATA_KEY = "__metadata__"

# Bits of an element, from safetensors 0.8.
DTYPE_BITS = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}

DOWNLOAD_AGAIN = "download the file again"


@dataclass(frozen=True)
class TensorEntry:
    """Type, shape and position of a tensor, relative to `data_start`."""

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
    metadata: dict[str, str]  # free key-value pairs, often {"format": "pt"}
    data_start: int  # offset in the file of the first tensor byte
    data_bytes: int  # size of all tensors together


def read_header(path: Path) -> SafetensorsHeader:
    """Return the header; check its consistency and the file size."""
    with (
        raise_as(CheckpointError, "the weights cannot be read", path),
        open_regular(path, None) as file,
    ):
        size = os.fstat(file.fileno()).st_size
        length = _header_length(file.read(PREFIX_BYTES), size, path)
        text = file.read(length)
    entries = _parse(text, path)
    metadata = _metadata(entries.pop(METADATA_KEY, {}), path)
    tensors = {name: check_tensor(name, entry, path) for name, entry in entries.items()}
    data_bytes = _check_coverage(tensors, path)
    expected = PREFIX_BYTES + length + data_bytes
    if size != expected:
        raise CheckpointError(
            f"the file has {size} bytes, its header requires {expected}"
            + (": it is truncated" if size < expected else ""),
            where=str(path),
            hint=DOWNLOAD_AGAIN,
        )
    return SafetensorsHeader(tensors, metadata, PREFIX_BYTES + length, data_bytes)


def _header_length(prefix: bytes, size: int, path: Path) -> int:
    if len(prefix) < PREFIX_BYTES:
        raise _damage_error(f"the file has {size} bytes, too few for a safetensors file", path)
    if prefix == b"version ":
        raise CheckpointError(
            "the file is a Git LFS pointer, not the weights themselves",
            where=str(path),
            hint=f"fetch the weights: git -C {path.parent} lfs pull",
        )
    length = int.from_bytes(prefix, "little")
    if length > MAX_HEADER_BYTES:
        raise _damage_error(
            f"its header has {length} bytes; the limit is {MAX_HEADER_BYTES}",
            path,
        )
    if PREFIX_BYTES + length > size:
        raise _damage_error(
            f"the file has {size} bytes, its header alone requires {PREFIX_BYTES + length}: "
            "it is truncated",
            path,
        )
    return length


def _parse(text: bytes, path: Path) -> dict[str, Any]:
    try:
        entries = parse_json(text)
    except ValueError as error:
        raise _damage_error(f"its header is not valid JSON ({error})", path) from error
    if not isinstance(entries, dict):
        raise _damage_error("its header is not a JSON object", path)
    return entries


def _metadata(value: Any, path: Path) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise _damage_error(f"its {METADATA_KEY} does not map text to text", path)
    return value


def check_tensor(name: str, entry: Any, path: Path) -> TensorEntry:
    """Validate one entry of a header; raise CheckpointError if it is inconsistent."""
    if len(name) > MAX_NAME_CHARACTERS:
        raise _damage_error(f"a tensor's name has more than {MAX_NAME_CHARACTERS} characters", path)
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise _damage_error(
            f"the entry of tensor '{name}' lacks dtype, shape or data_offsets", path
        )
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise CheckpointError(
            f"tensor '{name}' has the unknown type {dtype!r}",
            where=str(path),
            hint=f"known are {', '.join(DTYPE_BITS)}; otherwise {DOWNLOAD_AGAIN}",
        )
    if not _are_sizes(shape):
        raise _damage_error(f"tensor '{name}' has the shape {str(shape)[:80]}", path)
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise _damage_error(f"tensor '{name}' has the offsets {str(offsets)[:80]}", path)
    tensor = TensorEntry(dtype, tuple(shape), offsets[0], offsets[1])
    taken, needed = tensor.size * 8, tensor.elements * DTYPE_BITS[dtype]
    if taken != needed:
        raise _damage_error(
            f"tensor '{name}' takes {taken} bits; its type and shape need {needed}", path
        )
    return tensor


def _are_sizes(value: Any) -> bool:
    """Return whether the value is a short list of non-negative integers (booleans excluded)."""
    return (
        isinstance(value, list)
        and len(value) <= MAX_DIMENSIONS
        and all(type(item) is int and 0 <= item < 2**63 for item in value)
    )


def _check_coverage(tensors: dict[str, TensorEntry], path: Path) -> int:
    """Check that tensors are contiguous from 0; return the end of the last one."""
    position = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
        if tensor.begin != position:
            kind = "overlap" if tensor.begin < position else "leave a gap"
            raise _damage_error(f"its tensors {kind} at '{name}'", path)
        position = tensor.end
    return position


def _damage_error(what: str, path: Path) -> CheckpointError:
    return CheckpointError(f"the weights are damaged: {what}", where=str(path), hint=DOWNLOAD_AGAIN)
