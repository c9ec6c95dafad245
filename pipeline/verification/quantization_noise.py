"""How far a quantized layer's weights are from the source's: signal-to-quantization-noise (SQNR).

SQNR = 10 log10( sum(w^2) / sum((w - w')^2) ) in dB, over all weights of a layer, w' being the
stored weights as numbers again. An unrelated matrix of the same size has about -3 dB, a matrix of
zeros 0 dB.

The same energies, kept for every piece of a row (128 columns or fewer), show damage that is too
small to move a large layer's SQNR: see :data:`DAMAGED`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pipeline.core.errors import VerificationError
from pipeline.verification.dequantize import ROW_STEP, LayerDequantizer
from pipeline.verification.number_types import Floats
from pipeline.verification.tensor_files import StoredTensor

CHUNK_ELEMENTS = 2**19  # 2 MB as float32: a few such arrays stay near the processor
PIECE_COLUMNS = 128
# A piece is damaged when its noise is over this share of its signal, or of the signal that a piece
# of its row has on average where that is more. Rounding to 4 bits leaves a few hundredths.
DAMAGED = 0.5
# Rows that are this much weaker than the average row may be rounded away altogether.
FAINT_ROW = 1e-3
# Sums of squares below this, in float32, have lost bits to underflow.
TINY = 1e-25


@dataclass
class QuantizationNoise:
    """Energies of a layer, summed chunk by chunk."""

    damaged_over: float = DAMAGED  # noise of a piece by which it is damaged, see :data:`DAMAGED`
    signal: float = 0.0  # sum of the source's squares
    noise: float = 0.0  # sum of the differences' squares
    # (row, first column, row's signal) of pieces that look damaged.
    suspects: list[tuple[int, int, float]] = field(default_factory=list)
    rows: int = 0  # so far

    @property
    def sqnr_db(self) -> float:
        """In dB; infinite where nothing was lost."""
        if not self.noise:
            return math.inf
        return 10 * math.log10(self.signal / self.noise) if self.signal else -math.inf

    @property
    def damaged(self) -> list[tuple[int, int]]:
        """(row, first column) of each damaged piece."""
        faint = FAINT_ROW * self.signal / max(1, self.rows)
        return [(row, column) for row, column, signal in self.suspects if signal >= faint]

    def add(self, source: Floats, difference: Floats) -> None:
        """Add the next rows of the layer, rows x columns; `difference` is stored minus source."""
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
        self.rows += len(source)


def piece_columns(columns: int) -> int:
    """Columns of a piece: the most, up to 128, that divide a row; a whole row where few do."""
    width = max(n for n in range(1, min(columns, PIECE_COLUMNS) + 1) if columns % n == 0)
    return width if width >= PIECE_COLUMNS // 8 else columns


def energies(values: Floats, width: int) -> Any:
    """Sums of squares of each row's pieces, as float64: rows x pieces."""
    pieces = values.reshape(len(values), -1, width)
    sums = np.einsum("rpc,rpc->rp", pieces, pieces).astype(np.float64)
    weak = ~((sums > TINY) & (sums < 1 / TINY))
    if weak.any():
        exact = pieces[weak].astype(np.float64)
        sums[weak] = np.einsum("pc,pc->p", exact, exact)
    return sums


def chunks(rows: int, columns: int) -> Iterator[tuple[int, int]]:
    """Ranges of rows of about half a million weights each, cut where every format can be cut."""
    step = max(1, CHUNK_ELEMENTS // max(1, columns) // ROW_STEP) * ROW_STEP
    for begin in range(0, rows, step):
        yield begin, min(rows, begin + step)


def measure(source: StoredTensor, stored: LayerDequantizer) -> QuantizationNoise:
    """The noise of a layer whose weights were rounded and nothing else."""
    noise = QuantizationNoise()
    for begin, end in chunks(*source.shape):
        weights = source.floats(begin, end)
        difference = stored.rows(begin, end)
        np.subtract(difference, weights, out=difference)
        noise.add(weights, difference)
    check_finite(source, noise)
    return noise


def check_finite(source: StoredTensor, noise: QuantizationNoise) -> None:
    """Raise VerificationError where the source itself holds what is no number."""
    if not math.isfinite(noise.signal):
        raise VerificationError(
            f"the source's tensor '{source.name}' holds numbers that are not finite",
            where=str(source.path),
            hint="no quantization can fix that; take another checkpoint",
        )
    if not math.isfinite(noise.noise):
        raise VerificationError(
            f"the stored weights of '{source.name}' are not finite numbers",
            where=str(source.path),
        )
