"""The measure of noise: against its definition, against damage, and what the fit cannot hide."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from narrow_numbers import Stored
from one_layer import stored_layer
from small_checkpoint import write_files
from sound_variants import RECIPES, WEIGHTS, safetensors_of

from pipeline.core.errors import VerificationError
from pipeline.verification import quantization_noise
from pipeline.verification.quantization_noise import QuantizationNoise, measure, piece_columns
from pipeline.verification.rescaling import measure_rescaled
from pipeline.verification.tensor_files import StoredTensor, open_folder

RANDOM = np.random.default_rng(5)
MATRIX = RANDOM.normal(size=(384, 256)).astype(np.float32)


def plain(folder: Path, matrix: np.ndarray) -> StoredTensor:
    tensors = {"x.weight": Stored("F32", np.asarray(matrix, np.float32))}
    write_files(folder, {WEIGHTS: safetensors_of(tensors)})
    return open_folder(folder).tensors["x.weight"]


class AsItIs:
    """Weights that are given."""

    def __init__(self, matrix: np.ndarray) -> None:
        self.matrix = np.asarray(matrix, np.float32)

    def rows(self, begin: int, end: int) -> np.ndarray:
        return self.matrix[begin:end].copy()


@pytest.mark.parametrize("kind", list(RECIPES))
@pytest.mark.parametrize("elements", [2**20, 128 * 256])
def test_by_definition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, elements: int
) -> None:
    """In one chunk of rows or in several."""
    monkeypatch.setattr(quantization_noise, "CHUNK_ELEMENTS", elements)
    source, layer = stored_layer(tmp_path, MATRIX, kind)
    exact = MATRIX.astype(np.float64)
    lost = exact - layer.rows(0, len(MATRIX))
    expected = 10 * math.log10((exact**2).sum() / (lost**2).sum())
    found = measure(source, layer)
    assert found.sqnr_db == pytest.approx(expected, abs=1e-3)
    assert found.damaged == []
    assert found.rows == len(MATRIX)


def test_nothing_lost(tmp_path: Path) -> None:
    assert measure(plain(tmp_path, MATRIX), AsItIs(MATRIX)).sqnr_db == math.inf


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_sizes_whose_squares_do_not_fit(tmp_path: Path, size: float) -> None:
    rounded = np.round(MATRIX * 8) / 8
    here = measure(plain(tmp_path / "a", MATRIX), AsItIs(rounded)).sqnr_db
    there = measure(plain(tmp_path / "b", MATRIX * size), AsItIs(rounded * size)).sqnr_db
    assert there == pytest.approx(here, abs=0.01)


def test_a_piece_of_a_large_layer(tmp_path: Path) -> None:
    """4 thousandths of a dB of the layer, and yet it is seen."""
    large = RANDOM.normal(size=(4096, 512)).astype(np.float32)
    stored = large + RANDOM.normal(size=large.shape).astype(np.float32) * 0.03
    whole = measure(plain(tmp_path, large), AsItIs(stored))
    stored[3000, 128:256] *= -1
    found = measure(plain(tmp_path, large), AsItIs(stored))
    assert found.damaged == [(3000, 128)]
    assert whole.damaged == []
    assert found.sqnr_db > 25


def test_a_faint_row_may_be_rounded_away(tmp_path: Path) -> None:
    faint = MATRIX.copy()
    faint[7] *= 1e-6
    stored = faint.copy()
    stored[7] = 0
    assert measure(plain(tmp_path, faint), AsItIs(stored)).damaged == []


def test_numbers_that_are_not_finite(tmp_path: Path) -> None:
    broken = MATRIX.copy()
    broken[100, 7] = np.nan
    with pytest.raises(VerificationError, match=r"'x\.weight'"):
        measure(plain(tmp_path, broken), AsItIs(MATRIX))


@pytest.mark.parametrize(
    ("columns", "width"), [(1, 1), (127, 127), (128, 128), (576, 96), (1536, 128), (1031, 1031)]
)
def test_columns_of_a_piece(columns: int, width: int) -> None:
    assert piece_columns(columns) == width


class TestRescaled:
    def test_columns_and_rows_are_found(self, tmp_path: Path) -> None:
        columns, rows = RANDOM.uniform(0.1, 10, 256), RANDOM.uniform(0.1, 10, 384)
        stored = MATRIX * columns * rows[:, None]
        stored *= 1 + RANDOM.normal(size=stored.shape) * 0.01
        found = measure_rescaled(plain(tmp_path, MATRIX), AsItIs(stored))
        assert found.noise.sqnr_db == pytest.approx(40, abs=0.5)
        both = found.columns * columns
        assert np.abs(both / np.median(both) - 1).max() < 0.01
        both = found.rows * rows
        assert np.abs(both / np.median(both) - 1).max() < 0.01

    def test_an_unrelated_matrix(self, tmp_path: Path) -> None:
        other = RANDOM.normal(size=MATRIX.shape)
        found = measure_rescaled(plain(tmp_path, MATRIX), AsItIs(other))
        assert -0.1 < found.noise.sqnr_db < 0.5

    @pytest.mark.parametrize("factor", [0.0, -1.0])
    def test_a_matrix_of_zeros_or_of_the_other_sign(self, tmp_path: Path, factor: float) -> None:
        found = measure_rescaled(plain(tmp_path, MATRIX), AsItIs(MATRIX * factor))
        assert found.noise.sqnr_db == pytest.approx(0, abs=1e-6)

    def test_rows_of_the_other_sign(self, tmp_path: Path) -> None:
        stored = MATRIX.copy()
        stored[50] *= -1
        found = measure_rescaled(plain(tmp_path, MATRIX), AsItIs(stored))
        assert {row for row, _ in found.noise.damaged} == {50}


def test_energies_add_up() -> None:
    total = QuantizationNoise()
    for begin in range(0, 384, 128):
        total.add(MATRIX[begin : begin + 128], MATRIX[begin : begin + 128] * 0.1)
    assert total.signal == pytest.approx(float((MATRIX.astype(np.float64) ** 2).sum()))
    assert total.sqnr_db == pytest.approx(20, abs=1e-4)
