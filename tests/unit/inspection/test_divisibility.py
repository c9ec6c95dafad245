"""Which group sizes and blocks divide which layers."""

from __future__ import annotations

import pytest

from pipeline.inspection.divisibility import (
    find_undivided_columns,
    find_undivided_rows,
)
from recipes.catalog import load_recipe

DEMO_COLUMNS = {576, 1536}


@pytest.mark.parametrize(
    ("recipe", "columns", "undivided"),
    [
        ("fp8-dynamic", {7}, ()),
        ("fp8-static", {7}, ()),
        ("int8-w8a8", {7}, ()),
        ("awq-w4a16", DEMO_COLUMNS, ()),  # 64 does
        ("gptq-w4a16", {48, 128}, (48,)),
        ("awq-w4a16-g64", {4096, 72, 40}, (40, 72)),
        ("nvfp4", DEMO_COLUMNS, ()),
        ("nvfp4", {4096, 72}, (72,)),
        ("fp8-block", DEMO_COLUMNS, (576,)),
        ("fp8-block", {4096, 14336}, ()),
        ("baseline", {7}, ()),
    ],
)
def test_columns_in_the_way(recipe: str, columns: set[int], undivided: tuple[int, ...]) -> None:
    assert find_undivided_columns(load_recipe(recipe).quantization, columns) == undivided


def test_rows_above_a_seam_have_to_be_whole_blocks() -> None:
    shapes = {
        "model.layers.0.self_attn.q_proj.weight": (4096, 4096),
        "model.layers.0.self_attn.k_proj.weight": (64, 4096),
        "model.layers.0.self_attn.v_proj.weight": (64, 4096),  # the last may end within a block
        "model.layers.0.mlp.down_proj.weight": (4100, 14336),  # not put together with others
    }
    block = find_undivided_rows(load_recipe("fp8-block").quantization, shapes)
    assert block == {"model.layers.0.self_attn.k_proj.weight": 64}
    assert find_undivided_rows(load_recipe("awq-w4a16").quantization, shapes) == {}
