"""Noise of layers whose columns and rows were rescaled before rounding.

AWQ and SmoothQuant multiply a layer's columns by scales and divide the layer's producer (a norm, or
the rows of an earlier layer) by the same. The stored matrix V is therefore compared with the
source's W after undoing the scaling: W ~ diag(r) V diag(t). Non-negative r and t come from
alternating least squares, columns first; each step is the closed-form minimum.

The fit has rows + columns parameters for rows x columns weights, so it cannot hide a wrong matrix:
an unrelated one has about 0 dB, like zeros. It could hide a wrong scaling, so
`function_equivalence.py` compares r and t with the norms.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.verification.dequantize import LayerDequantizer
from pipeline.verification.number_types import Floats
from pipeline.verification.quantization_noise import QuantizationNoise, check_finite, chunks
from pipeline.verification.tensor_files import StoredTensor

# Replaces `quantization_noise.DAMAGED`: a scaled-down outlier channel may lose more. In the demo's
# AWQ variants one piece in 600,000 has 0.5 to 0.65.
DAMAGED = 0.8
MAX_PASSES = 6
SETTLED_DB = 0.05


@dataclass
class RescalingFit:
    """Result of the fit."""

    noise: QuantizationNoise  # remaining noise, in the source's scaling
    columns: Floats  # factor of each stored column
    rows: Floats  # factor of each stored row


def measure_rescaled(source: StoredTensor, stored: LayerDequantizer) -> RescalingFit:
    """Fit the scaling in several passes, and measure the remaining noise."""
    columns = _first_columns(source, stored)
    found = _one_pass(source, stored, columns)
    for _ in range(MAX_PASSES - 2):
        before = found.noise.sqnr_db
        fitted, columns = found, found.next_columns
        found = _one_pass(source, stored, columns)
        if found.noise.sqnr_db < before:
            found = fitted
            break
        if not math.isfinite(before) or found.noise.sqnr_db - before < SETTLED_DB:
            break
    check_finite(source, found.noise)
    return found


@dataclass
class _Pass(RescalingFit):
    next_columns: Floats


def _first_columns(source: StoredTensor, stored: LayerDequantizer) -> Floats:
    products, squares = np.zeros((2, source.shape[1]))
    for begin, end in chunks(*source.shape):
        weights, values = source.floats(begin, end), stored.rows(begin, end)
        products += np.einsum("ij,ij->j", weights, values)
        squares += np.einsum("ij,ij->j", values, values)
    return _ratio(products, squares)


def _one_pass(source: StoredTensor, stored: LayerDequantizer, columns: Floats) -> _Pass:
    noise, rows = QuantizationNoise(damaged_over=DAMAGED), []
    products, squares = np.zeros((2, source.shape[1]))
    for begin, end in chunks(*source.shape):
        weights, values = source.floats(begin, end), stored.rows(begin, end)
        scaled = values * columns
        best = _ratio(np.einsum("ij,ij->i", weights, scaled), np.einsum("ij,ij->i", scaled, scaled))
        scaled *= best[:, None]
        np.subtract(scaled, weights, out=scaled)
        noise.add(weights, scaled)
        values *= best[:, None]
        products += np.einsum("ij,ij->j", weights, values)
        squares += np.einsum("ij,ij->j", values, values)
        rows.append(best)
    return _Pass(noise, columns, np.concatenate(rows), _ratio(products, squares))


def _ratio(products: Any, squares: Any) -> Floats:
    """Return non-negative least-squares factors, since scales are positive."""
    ratio = np.divide(products, squares, out=np.zeros(len(squares)), where=squares > 0)
    return np.asarray(np.maximum(ratio, 0), np.float32)
