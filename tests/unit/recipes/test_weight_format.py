"""Bytes of a matrix, counted by hand."""

from __future__ import annotations

import pytest

from recipes.catalog import load_recipe
from recipes.weight_format import AWQ_GEMM, WeightFormat

ROWS, COLUMNS = 256, 1024
GROUPS = ROWS * COLUMNS // 128
EIGHT_BITS = ROWS * COLUMNS


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        (WeightFormat("dense", 16, "float", "none"), 2 * EIGHT_BITS),
        (WeightFormat("float-quantized", 8, "float", "channel"), EIGHT_BITS + 2 * ROWS),
        (WeightFormat("int-quantized", 8, "int", "channel"), EIGHT_BITS + 2 * ROWS),
        (
            WeightFormat("float-quantized", 8, "float", "block", block=(128, 128)),
            EIGHT_BITS + 2 * 2 * 8,
        ),
        # The weights' scale, and that of the activations.
        (WeightFormat("float-quantized", 8, "float", "tensor", static_input=True), EIGHT_BITS + 4),
        (
            WeightFormat("pack-quantized", 4, "int", "group", group=128, symmetric=False),
            EIGHT_BITS // 2 + 2 * GROUPS + GROUPS // 2 + 16,
        ),
        (
            WeightFormat("pack-quantized", 4, "int", "group", group=128),
            EIGHT_BITS // 2 + 2 * GROUPS + 16,
        ),
        (
            WeightFormat(AWQ_GEMM, 4, "int", "group", group=128, symmetric=False),
            EIGHT_BITS // 2 + 2 * GROUPS + GROUPS // 2,
        ),
        (
            WeightFormat(
                *("nvfp4-pack-quantized", 4, "float", "tensor_group"), group=16, static_input=True
            ),
            EIGHT_BITS // 2 + ROWS * COLUMNS // 16 + 8,
        ),
        (
            WeightFormat("mxfp4-pack-quantized", 4, "float", "group", group=32),
            EIGHT_BITS // 2 + ROWS * COLUMNS // 32,
        ),
    ],
    ids=str,
)
def test_weights_scales_and_zero_points(form: WeightFormat, expected: int) -> None:
    assert form.matrix_bytes(ROWS, COLUMNS) == expected


def test_one_group_size_for_all_layers() -> None:
    awq = load_recipe("awq-w4a16").quantization
    for columns, group in ([1024], 128), ([1024, 576], 64), ([1024, 576, 96], 32), ([72], 128):
        assert awq.choose_format(columns).group == group
