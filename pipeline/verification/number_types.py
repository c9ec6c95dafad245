"""Conversion of narrow types to float32 with numpy: bf16, FP8, FP4 and packed integers.

Lookup tables convert two bytes at a time. That is faster than bit operations and ml_dtypes: three
times for FP8, more for packed types.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

# Types that safetensors and numpy share.
NUMPY_TYPES = {
    "U8": "u1",
    "I8": "i1",
    "I16": "<i2",
    "I32": "<i4",
    "I64": "<i8",
    "F16": "<f2",
    "F32": "<f4",
    "F64": "<f8",
}
FLOATING = ("BF16", "F16", "F32", "F64")
FP4_MAGNITUDES = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
# Types with the size of this many float32, copied as one element.
_CARRIERS = {1: "f4", 2: "f8", 4: "c16"}


def to_float32(raw: Bytes, dtype: str) -> Floats:
    """Return stored values as float32.

    Args:
        raw: little-endian bytes.
        dtype: safetensors' name of the type.

    Raises:
        KeyError: the type is not supported.
    """
    if dtype == "BF16":
        # bfloat16 is the upper half of a float32.
        return np.asarray(np.left_shift(raw.view("<u2"), 16, dtype=np.uint32).view(np.float32))
    if dtype == "F8_E4M3":
        return _look_up(raw, "fp8")
    values: Any = raw.view(NUMPY_TYPES[dtype])
    return np.asarray(values, dtype=np.float32)


def round_to(values: Floats, dtype: str) -> Floats:
    """Round values to a type, ties to even, and return them as float32.

    Args:
        dtype: one of BF16, F16 and F32.

    Raises:
        KeyError: the type is not supported.
    """
    if dtype == "BF16":
        bits: Any = values.astype(np.float32).view(np.uint32)
        upper = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
        return np.asarray(upper.astype(np.uint32).view(np.float32))
    narrow = {"F16": np.float16, "F32": np.float32}[dtype]
    return np.asarray(values.astype(narrow), np.float32)


def unpack_fp4(packed: Bytes) -> Floats:
    """Unpack two e2m1 values from each byte, lower half first."""
    return _look_up(packed, "fp4")


def unpack_integers(words: Bytes, bits: int) -> Floats:
    """Unpack signed 4- or 8-bit integers from little-endian 32-bit words, lowest bits first.

    compressed-tensors adds 2**(bits - 1), so that stored values are non-negative.
    """
    if bits == 8:
        return np.subtract(words, 128, dtype=np.float32)
    return _look_up(words, "int4")


def unpack_unsigned(words: Bytes, bits: int) -> Floats:
    """Unpack unsigned 4- or 8-bit integers from little-endian words, lowest bits first."""
    return words.astype(np.float32) if bits == 8 else _look_up(words, "uint4")


def unpack_awq(words: Bytes) -> Floats:
    """Unpack unsigned 4-bit integers, eight in a word, in the order of AWQ's GEMM kernel.

    The half bytes, lowest first, are the columns 0, 2, 4, 6, 1, 3, 5, 7.
    """
    halves = _look_up(words, "uint4").reshape(-1, 2, 4)
    return np.ascontiguousarray(halves.transpose(0, 2, 1)).reshape(-1)


def _look_up(raw: Bytes, kind: str) -> Floats:
    even = len(raw) // 2 * 2
    values = _table(kind, 2).take(raw[:even].view("<u2")).view(np.float32)
    if even == len(raw):
        return np.asarray(values)
    return np.concatenate([values, _table(kind, 1).take(raw[even:]).view(np.float32)])


@cache
def _table(kind: str, width: int) -> Any:
    """Return a table from codes of `width` bytes to their float32 values as one element."""
    values = _values(kind)
    bits = 4 if len(values) == 16 else 8
    codes = np.arange(256**width)
    columns = [values[codes >> shift & len(values) - 1] for shift in range(0, 8 * width, bits)]
    together = np.stack(columns, axis=1).astype(np.float32)
    return together.view(_CARRIERS[len(columns)]).reshape(-1)


def _values(kind: str) -> Any:
    if kind == "fp4":
        return np.concatenate([FP4_MAGNITUDES, -FP4_MAGNITUDES])
    if kind == "fp8":
        return _fp8_values()
    return np.arange(16) - (8 if kind == "int4" else 0)


def _fp8_values() -> Any:
    codes = np.arange(256)
    exponent, mantissa = codes >> 3 & 15, codes & 7
    magnitude = np.where(
        exponent == 0,
        np.ldexp(mantissa / 8, -6),
        np.ldexp(1 + mantissa / 8, exponent - 7),
    )
    magnitude[codes & 127 == 127] = np.nan
    return np.where(codes < 128, magnitude, -magnitude)
