"""Noise of rounding to nearest, of rows of a matrix, by NumPy.

It needs no quantizer's environment. tests/unit/recipes/test_rungs.py compares it with numbers that
the quantizers stored.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from recipes.checkpoints.safetensors_header import SafetensorsHeader
from recipes.weight_format import WeightFormat

TYPES = {"BF16": "<u2", "F16": "<f2", "F32": "<f4"}
FP4_LIMIT = 6.0
FP8_LIMIT = 448.0
# Exponents of the smallest normal numbers, and bits of the mantissa.
FP4 = (0, 1)
FP8 = (-6, 3)


def read_rows(path: Path, header: SafetensorsHeader, name: str, most: int) -> Any:
    """Return at most so many rows of a matrix, evenly spaced, in 32 bits; no other is read."""
    tensor = header.tensors[name]
    rows, _ = tensor.shape
    place = header.data_start + tensor.begin
    stored = np.memmap(path, TYPES[tensor.dtype], "r", place, tensor.shape)
    step = -(-rows // max(1, most))
    taken = np.array(stored[::step])
    del stored
    if tensor.dtype == "BF16":
        return (taken.astype(np.uint32) << 16).view(np.float32)
    return taken.astype(np.float32)


def energies(weights: Any, form: WeightFormat) -> tuple[float, float]:
    """Return the squares' sums of the weights and of what rounding changes."""
    rounded = _ROUNDED[form.number, form.bits](weights, form)
    difference = (weights - rounded).astype(np.float64)
    signal = float(np.square(weights, dtype=np.float64).sum())
    return signal, float(np.square(difference).sum())


def _integers(weights: Any, form: WeightFormat) -> Any:
    grouped = weights.reshape(len(weights), -1, form.group or weights.shape[1])
    most = 2**form.bits - 1
    if form.symmetric:
        step = 2 * np.abs(grouped).max(2, keepdims=True) / most
        step[step == 0] = 1
        low = -(most + 1) // 2
        return (np.clip(np.round(grouped / step), low, low + most) * step).reshape(weights.shape)
    low = np.minimum(grouped.min(2, keepdims=True), 0)
    step = (np.maximum(grouped.max(2, keepdims=True), 0) - low) / most
    step[step == 0] = 1
    zero = np.round(-low / step)
    numbers = np.clip(np.round(grouped / step) + zero, 0, most)
    return ((numbers - zero) * step).reshape(weights.shape)


def _floats(weights: Any, form: WeightFormat) -> Any:
    """8-bit floats with a scale a row; those of a matrix or of blocks are hardly worse."""
    step = np.abs(weights).max(1, keepdims=True) / FP8_LIMIT
    step[step == 0] = 1
    return _to_float(weights / step, *FP8) * step


def _short_floats(weights: Any, form: WeightFormat) -> Any:
    grouped = weights.reshape(len(weights), -1, form.group or weights.shape[1])
    largest = np.abs(grouped).max(2, keepdims=True)
    if form.strategy == "group":  # MXFP4: powers of two
        step = np.exp2(np.floor(np.log2(np.where(largest > 0, largest, 1))) - 2)
    else:
        whole = max(float(largest.max()), 1e-30) / (FP8_LIMIT * FP4_LIMIT)
        step = _to_float(largest / FP4_LIMIT / whole, *FP8) * whole
    step[step == 0] = 1
    numbers = np.clip(grouped / step, -FP4_LIMIT, FP4_LIMIT)
    return (_to_float(numbers, *FP4) * step).reshape(weights.shape)


def _to_float(numbers: Any, least_exponent: int, mantissa: int) -> Any:
    """Round to floats with so many bits of mantissa."""
    _, exponents = np.frexp(numbers)
    step = np.exp2(np.maximum(exponents - 1, least_exponent) - mantissa).astype(np.float32)
    return np.round(numbers / step) * step


_ROUNDED: dict[tuple[str, int], Callable[[Any, WeightFormat], Any]] = {
    ("int", 4): _integers,
    ("int", 8): _integers,
    ("float", 8): _floats,
    ("float", 4): _short_floats,
}
