"""Numbers as checkpoints store them, written the plain way, for tests of what reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

FP8_VALUES = np.array(
    [m / 8 * 2.0**-6 for m in range(8)]
    + [(1 + m / 8) * 2.0 ** (e - 7) for e in range(1, 16) for m in range(8)][:-1]
)
FP4_VALUES = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


@dataclass
class Stored:
    """A tensor as a file holds it.

    Attributes:
        dtype: safetensors' name.
        array: of the numpy type that has its bytes.
    """

    dtype: str
    array: Any


def bf16(values: Any) -> Stored:
    """Rounded to nearest, ties to even."""
    bits = np.asarray(values, np.float32).view(np.uint32).astype(np.uint64)
    return Stored("BF16", ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16))


def from_bf16(stored: Stored) -> Any:
    return (stored.array.astype(np.uint32) << 16).view(np.float32)


def floating(values: Any, dtype: str = "BF16") -> Stored:
    """In one of the wide types."""
    if dtype == "BF16":
        return bf16(values)
    return Stored(dtype, np.asarray(values, {"F16": np.float16, "F32": np.float32}[dtype]))


def widened(stored: Stored) -> Any:
    """float32 of what :func:`floating` stored."""
    if stored.dtype == "BF16":
        return from_bf16(stored)
    return stored.array.astype(np.float32)


def nearest(values: Any, magnitudes: Any, sign: int) -> Any:
    """Codes of the nearest magnitudes, with `sign` added for negative numbers."""
    middle = (magnitudes[1:] + magnitudes[:-1]) / 2
    codes = np.searchsorted(middle, np.abs(values))
    return np.where(np.signbit(values), codes + sign, codes).astype(np.uint8)


def fp8(values: Any) -> Stored:
    return Stored("F8_E4M3", nearest(values, FP8_VALUES, 128))


def from_fp8(stored: Stored) -> Any:
    magnitude = FP8_VALUES[np.minimum(stored.array & 127, 126)]
    return np.where(stored.array < 128, magnitude, -magnitude).astype(np.float32)


def fp4_pairs(values: Any) -> Stored:
    codes = nearest(values, FP4_VALUES, 8)
    return Stored("U8", codes[:, ::2] | codes[:, 1::2] << 4)


def words(numbers: Any, bits: int) -> Any:
    """Each row's unsigned numbers packed into 32-bit words from the lowest bit on."""
    packed = []
    for row in np.asarray(numbers).tolist():
        whole = sum(int(number) << (bits * place) for place, number in enumerate(row))
        count = -(-len(row) * bits // 32)
        packed.append(np.frombuffer(whole.to_bytes(4 * count, "little"), "<i4"))
    return np.array(packed, np.int32)


def pack_awq(numbers: Any) -> Any:
    """Each row's unsigned 4-bit numbers packed in the order of AWQ's GEMM kernel."""
    ordered = np.asarray(numbers).reshape(len(numbers), -1, 8)[:, :, AWQ_ORDER]
    return words(ordered.reshape(len(numbers), -1), 4)
