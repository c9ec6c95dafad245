"""Numbers of narrow types as float32, by numpy alone: bf16, FP8, FP4 and packed integers.

Narrow numbers are looked up several at a time in tables made on first use. That is quicker than
shifting bits, and numpy has none of these types.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
FP4_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def to_float32(raw: Bytes, dtype: str) -> Floats:
    """Stored numbers, one after the other, as float32.

    Args:
        raw: the bytes, little-endian.
        dtype: safetensors' name of the type.

    Raises:
        KeyError: a type that cannot be read.
    """
    import numpy as np

    if dtype == "BF16":
        # bfloat16 is the upper half of a float32.
        return np.asarray(np.left_shift(raw.view("<u2"), 16, dtype=np.uint32).view(np.float32))
    if dtype == "F8_E4M3":
        return _look_up(raw, _pairs_of_fp8(), _fp8_values())
    values: Any = raw.view(NUMPY_TYPES[dtype])
    return np.asarray(values, dtype=np.float32)


def rounded(values: Floats, dtype: str) -> Floats:
    """The nearest numbers of a type, the even one of two, as float32.

    Args:
        values: finite numbers.
        dtype: one of BF16, F16 and F32.

    Raises:
        KeyError: another type.
    """
    import numpy as np

    if dtype == "BF16":
        bits: Any = values.astype(np.float32).view(np.uint32)
        upper = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
        return np.asarray(upper.astype(np.uint32).view(np.float32))
    narrow = {"F16": np.float16, "F32": np.float32}[dtype]
    return np.asarray(values.astype(narrow), np.float32)


def unpack_fp4(packed: Bytes) -> Floats:
    """Two e2m1 numbers a byte, the first in the lower half."""
    return _look_up(packed, _quads(_fp4_values), _pairs(_fp4_values))


def unpack_integers(words: Bytes, bits: int) -> Floats:
    """Signed integers, packed from the lowest bit of 32-bit words on, stored with an offset.

    As compressed-tensors packs them: 2**(bits - 1) is added, so that no stored number is negative.

    Args:
        words: the words' bytes, little-endian.
        bits: of a number, 4 or 8.
    """
    import numpy as np

    if bits == 8:
        return np.subtract(words, 128, dtype=np.float32)
    return _look_up(words, _quads(_int4_values), _pairs(_int4_values))


def unpack_awq(words: Bytes) -> Floats:
    """Unsigned 4-bit numbers, eight a word, in the order of AWQ's GEMM kernel.

    The word's halves of bytes, from the lowest on, hold the columns 0, 2, 4, 6, 1, 3, 5, 7.
    """
    import numpy as np

    nibbles = _look_up(words, _quads(_uint4_values), _pairs(_uint4_values))
    return np.ascontiguousarray(nibbles.reshape(-1, 2, 4).transpose(0, 2, 1)).reshape(-1)


def _look_up(raw: Bytes, wide: Any, narrow: Any) -> Floats:
    """Look up two bytes at a time, and an odd last one by itself."""
    import numpy as np

    even = len(raw) // 2 * 2
    values = wide.take(raw[:even].view("<u2")).view(np.float32)
    if even == len(raw):
        return np.asarray(values)
    return np.concatenate([values, narrow.take(raw[even:]).view(np.float32)])


@cache
def _fp8_values() -> Any:
    """The 256 values of float8_e4m3fn: no infinities, and NaN where all other bits are set."""
    import numpy as np

    codes = np.arange(256)
    exponent, mantissa = codes >> 3 & 15, codes & 7
    magnitude = np.where(
        exponent == 0,
        np.ldexp(mantissa / 8, -6),
        np.ldexp(1 + mantissa / 8, exponent - 7),
    )
    magnitude[codes & 127 == 127] = np.nan
    return np.where(codes < 128, magnitude, -magnitude).astype(np.float32)


@cache
def _pairs_of_fp8() -> Any:
    import numpy as np

    values, codes = _fp8_values(), np.arange(65536)
    return _fused([values[codes & 255], values[codes >> 8]], "f8")


def _fp4_values() -> Any:
    import numpy as np

    magnitudes = np.array(FP4_MAGNITUDES, np.float32)
    return np.concatenate([magnitudes, -magnitudes])


def _int4_values() -> Any:
    import numpy as np

    return np.arange(-8, 8, dtype=np.float32)


def _uint4_values() -> Any:
    import numpy as np

    return np.arange(16, dtype=np.float32)


@cache
def _pairs(values: Any) -> Any:
    """By byte, the two 4-bit numbers in it."""
    import numpy as np

    codes = np.arange(256)
    return _fused([values()[codes & 15], values()[codes >> 4]], "f8")


@cache
def _quads(values: Any) -> Any:
    """By two bytes, the four 4-bit numbers in them."""
    import numpy as np

    codes = np.arange(65536)
    return _fused([values()[codes >> shift & 15] for shift in (0, 4, 8, 12)], "c16")


def _fused(columns: list[Any], carrier: str) -> Any:
    """Several float32 side by side as one element, which is only ever copied as it is."""
    import numpy as np

    return np.stack(columns, axis=1).astype(np.float32).view(carrier).reshape(-1)
