"""Which group sizes and blocks divide which layers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.errors import StageError
from pipeline.inspection.divisibility import (
    dividing_group_size,
    find_dividing,
    find_undivided_columns,
    find_undivided_rows,
)
from recipes.catalog import load_recipe

ROOT = Path(__file__).parents[3]
DEMO_COLUMNS = {576, 1536}
sizes_tried = st.lists(st.integers(1, 256), max_size=4)
widths = st.sets(st.integers(1, 4096), max_size=6)


@given(sizes_tried, widths)
def test_the_first_that_divides_all(sizes: list[int], columns: set[int]) -> None:
    dividing = [size for size in sizes if all(width % size == 0 for width in columns)]
    assert find_dividing(sizes, columns) == (dividing[0] if dividing else None)


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


def test_it_needs_the_standard_library_only() -> None:
    """The quantizers' environments import it, without this project's packages."""
    program = "import pipeline.inspection.divisibility, sys; print('pydantic' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert done.stdout.strip() == "False"


def plain(recipe: str) -> dict[str, Any]:
    return load_recipe(recipe).quantization.model_dump()


@pytest.mark.parametrize(
    ("recipe", "columns", "size"),
    [
        ("awq-w4a16", {4096, 14336}, 128),
        ("awq-w4a16", {576, 1536}, 64),
        ("gptq-w4a16", {576, 96}, 32),
        ("awq-w4a16-g64", {4096}, 64),
        ("nvfp4", {576}, 16),
        ("fp8-block", {4096}, 128),
        ("fp8-dynamic", {7}, None),
        ("fp8-static", {7}, None),
        ("int8-w8a8", {7}, None),
    ],
)
def test_the_group_size_that_divides(recipe: str, columns: set[int], size: int | None) -> None:
    assert dividing_group_size(plain(recipe), columns) == size


@pytest.mark.parametrize(
    ("recipe", "columns"), [("awq-w4a16", {48, 128}), ("nvfp4", {24}), ("fp8-block", {576, 1536})]
)
def test_none_divides(recipe: str, columns: set[int]) -> None:
    with pytest.raises(StageError) as caught:
        dividing_group_size(plain(recipe), columns)
    assert caught.value.where == "recipe key quantization.group_size"
    assert "fp8-dynamic" in caught.value.hint
