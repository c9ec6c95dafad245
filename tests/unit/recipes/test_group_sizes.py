"""Group sizes that divide a model's matrices."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.errors import StageError
from recipes.catalog import load_recipe
from recipes.group_sizes import dividing_group_size, find_dividing

ROOT = Path(__file__).parents[3]
sizes_tried = st.lists(st.integers(1, 256), max_size=4)
widths = st.sets(st.integers(1, 4096), max_size=6)


@given(sizes_tried, widths)
def test_the_first_that_divides_all(sizes: list[int], columns: set[int]) -> None:
    dividing = [size for size in sizes if all(width % size == 0 for width in columns)]
    assert find_dividing(sizes, columns) == (dividing[0] if dividing else None)


def test_it_needs_the_standard_library_only() -> None:
    """The quantizers' environments import it, without this project's packages."""
    program = "import recipes.group_sizes, sys; print('pydantic' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert done.stdout.strip() == "False"


def sizes_of(recipe: str) -> tuple[int, ...]:
    return load_recipe(recipe).quantization.group_sizes


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
    assert dividing_group_size(sizes_of(recipe), columns) == size


@pytest.mark.parametrize(
    ("recipe", "columns"), [("awq-w4a16", {48, 128}), ("nvfp4", {24}), ("fp8-block", {576, 1536})]
)
def test_none_divides(recipe: str, columns: set[int]) -> None:
    with pytest.raises(StageError) as caught:
        dividing_group_size(sizes_of(recipe), columns)
    assert caught.value.where == "recipe key quantization.group_size"
    assert "fp8-dynamic" in caught.value.hint
