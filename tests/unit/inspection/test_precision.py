"""Bytes of a matrix, counted by hand."""

from __future__ import annotations

import pytest

from pipeline.inspection.precision import PRECISIONS, choose_precision
from recipes.catalog import load_recipe
from recipes.quantization import AwqQuantization

ROWS, COLUMNS = 256, 1024
GROUPS = ROWS * COLUMNS // 128


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (0, 2 * ROWS * COLUMNS),
        (1, ROWS * COLUMNS + 2 * ROWS),
        (2, ROWS * COLUMNS + 2 * ROWS),
        (3, ROWS * COLUMNS // 2 + 2 * GROUPS + GROUPS // 2 + 16),
        (4, ROWS * COLUMNS // 2 + 2 * GROUPS + 16),
    ],
    ids=[precision.name for precision in PRECISIONS],
)
def test_weights_scales_and_zero_points(number: int, expected: int) -> None:
    assert PRECISIONS[number].matrix_bytes(ROWS, COLUMNS) == expected


def test_one_group_size_for_all_layers() -> None:
    awq = load_recipe("awq-w4a16").quantization
    assert isinstance(awq, AwqQuantization)
    for columns, group in ([1024], 128), ([1024, 576], 64), ([1024, 576, 96], 32), ([72], None):
        precision = choose_precision(awq, columns)
        assert precision is not None
        assert precision.group == group
    assert choose_precision(load_recipe("baseline").quantization, [1024]) is None
