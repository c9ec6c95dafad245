"""Signal-to-quantization-noise ratio (SQNR) of a layer's weights.

SQNR = 10 log10( sum(w^2) / sum((w - w')^2) ) in dB, over all weights of a layer; w' are the
dequantized weights. An unrelated matrix of the same size has about -3 dB, a zero matrix 0 dB.

The energies of each piece of a row (at most 128 columns) reveal damage that is too small to change
a large layer's SQNR: see :data:`DAMAGED`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pipeline.core.errors import VerificationError
from pipeline.verification.chunk_size import CHUNK_ELEMENTS, ROW_STEP
from pipeline.verification.dequantize import LayerDequantizer
from pipeline.verification.number_types import Floats
from pipeline.verification.tensor_files import StoredTensor

PIECE_COLUMNS = 128
# A piece is damaged if its noise exceeds this fraction of its signal, or of the row's mean signal
# if that is larger. Rounding to 4 bits causes a few hundredths.
DAMAGED = 0.5
# Rows that are this much weaker than the average may be rounded to zero.
FAINT_ROW = 1e-3
# Sums of squares below this, in float32, have lost bits to underflow.
TINY = 1e-25


@dataclass
class QuantizationNoise:
    """Energies of a layer, summed chunk by chunk."""

    damaged_over: float = DAMAGED  # see :data:`DAMAGED`
    signal: float = 0.0  # sum of the source's squares
    noise: float = 0.0  # sum of the differences' squares
    offset: float = 0.0  # part of it that each piece's mean difference explains
    # (row, first column, row's signal) of possibly damaged pieces.
    suspects: list[tuple[int, int, float]] = field(default_factory=list)
    rows: int = 0  # so far

    @property
    def sqnr_db(self) -> float:
        if not self.noise:
            return math.inf
        return 10 * math.log10(self.signal / self.noise) if self.signal else -math.inf

    @property
    def damaged(self) -> list[tuple[int, int]]:
        faint = FAINT_ROW * self.signal / max(1, self.rows)
        return [(row, column) for row, column, signal in self.suspects if signal >= faint]

    def add(self, source: Floats, difference: Floats) -> None:
        """Add the next rows (rows x columns); `difference` is stored minus source."""
        width = piece_columns(source.shape[1])
        signal, noise = energies(source, width), energies(difference, width)
        row_signal = signal.sum(axis=1, keepdims=True)
        usual = row_signal / signal.shape[1]
        bad = noise > self.damaged_over * np.maximum(signal, usual)
        self.suspects += [
            (self.rows + int(row), int(piece) * width, float(row_signal[row, 0]))
            for row, piece in np.argwhere(bad)
        ]
        self.signal += float(row_signal.sum())
        self.noise += float(noise.sum())
        if width >= PIECE_COLUMNS // 8:  # chance explains 1 / width
            sums = np.einsum("rpc->rp", difference.reshape(len(difference), -1, width))
            self.offset += float(np.square(sums, dtype=np.float64).sum()) / width
        self.rows += len(source)


def piece_columns(columns: int) -> int:
    """Return the largest divisor of a row up to 128; the whole row if that is too small."""
    width = max(n for n in range(1, min(columns, PIECE_COLUMNS) + 1) if columns % n == 0)
    return width if width >= PIECE_COLUMNS // 8 else columns


def energies(values: Floats, width: int) -> Any:
    """Return sums of squares of each row's pieces as float64, rows x pieces."""
    pieces = values.reshape(len(values), -1, width)
    sums = np.einsum("rpc,rpc->rp", pieces, pieces).astype(np.float64)
    weak = ~((sums > TINY) & (sums < 1 / TINY))
    if weak.any():
        exact = pieces[weak].astype(np.float64)
        sums[weak] = np.einsum("pc,pc->p", exact, exact)
    return sums


def chunks(rows: int, columns: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of rows with about half a million weights, aligned for every format."""
    step = max(1, CHUNK_ELEMENTS // max(1, columns) // ROW_STEP) * ROW_STEP
    for begin in range(0, rows, step):
        yield begin, min(rows, begin + step)


def measure(source: StoredTensor, stored: LayerDequantizer) -> QuantizationNoise:
    """Return the noise of a layer that was rounded but not rescaled."""
    noise = QuantizationNoise()
    for begin, end in chunks(*source.shape):
        weights = source.floats(begin, end)
        difference = stored.rows(begin, end)
        np.subtract(difference, weights, out=difference)
        noise.add(weights, difference)
    check_finite(source, noise)
    return noise


def check_finite(source: StoredTensor, noise: QuantizationNoise) -> None:
    """Raise VerificationError if source or stored weights are not finite."""
    if not math.isfinite(noise.signal):
        raise VerificationError(
            f"the source's tensor '{source.name}' has values that are not finite",
            where=str(source.path),
            hint="quantization cannot fix that; use another checkpoint",
        )
    if not math.isfinite(noise.noise):
        raise VerificationError(
            f"the stored weights of '{source.name}' are not finite numbers",
            where=str(source.path),
        )
