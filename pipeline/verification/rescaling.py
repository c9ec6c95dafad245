"""The noise of layers whose columns and rows the quantizer rescaled before it rounded them.

AWQ and SmoothQuant multiply a layer's columns by scales and divide what feeds the layer (a norm,
or the rows of the layer before) by the same. So the stored matrix V is compared with the source's
W after undoing it: W ~ diag(r) V diag(t), with r and t at least 0 by alternating least squares,
columns first. Each is the minimum in closed form with the other held.

The fit has rows + columns parameters for rows x columns weights, so it cannot hide a wrong
matrix: an unrelated one comes to about 0 dB, as zeros do. What it could hide is a wrong scaling;
`function_preserved.py` compares r and t with the norms for that.
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

# In place of `noise.DAMAGED`: a large outlier's channel that was scaled down may lose more. Of the
# demo's AWQ variants one piece in 600,000 had between 0.5 and 0.65.
DAMAGED = 0.8
MOST_PASSES = 6
SETTLED_DB = 0.05


@dataclass
class RescalingFit:
    """What the fit found."""

    noise: QuantizationNoise  # that is left, in the source's scaling
    columns: Floats  # what the stored columns have to be multiplied by; one number a column
    rows: Floats  # likewise, one a row


def measure_rescaled(source: StoredTensor, stored: LayerDequantizer) -> RescalingFit:
    """Fit the scaling, reading the layer several times, and measure what is left."""
    columns = _first_columns(source, stored)
    found = _one_pass(source, stored, columns)
    for _ in range(MOST_PASSES - 2):
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
    """The best columns where all rows are left as they are."""
    products, squares = np.zeros((2, source.shape[1]))
    for begin, end in chunks(*source.shape):
        weights, values = source.floats(begin, end), stored.rows(begin, end)
        products += np.einsum("ij,ij->j", weights, values)
        squares += np.einsum("ij,ij->j", values, values)
    return _ratio(products, squares)


def _one_pass(source: StoredTensor, stored: LayerDequantizer, columns: Floats) -> _Pass:
    """With the columns given: the best rows, what is left, and the best columns for those rows."""
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
    """Least squares of one number each; none is below 0, since scales are positive."""
    ratio = np.divide(products, squares, out=np.zeros(len(squares)), where=squares > 0)
    return np.asarray(np.maximum(ratio, 0), np.float32)
