"""Matrices that a recipe's groups or blocks do not divide, from shapes alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from recipes.group_sizes import find_dividing
from recipes.quantization import Quantization

# vLLM stacks these above others in one matrix (q, k, v; gate, up), and no block may cross the seam:
# `validate_fp8_block_shape` in its fp8_utils. The last part may end within a block.
ABOVE_A_SEAM = ("q_proj", "k_proj", "gate_proj", "w1")


def find_undivided_columns(quantization: Quantization, columns: Iterable[int]) -> tuple[int, ...]:
    """Return the sorted columns that no group size of the recipe divides."""
    widths = set(columns)
    sizes = quantization.group_sizes
    if not sizes or find_dividing(sizes, widths):
        return ()
    return tuple(sorted(width for width in widths if width % min(sizes)))


def find_undivided_rows(
    quantization: Quantization, shapes: Mapping[str, Sequence[int]]
) -> dict[str, int]:
    """Return layers, and their rows, where vLLM requires blocks that divide the rows."""
    found = {}
    for name, shape in shapes.items():
        module = name.removesuffix(".weight")
        block = quantization.for_module(module).rows_of_block
        if block and module.rpartition(".")[2] in ABOVE_A_SEAM and shape[0] % block:
            found[name] = shape[0]
    return found
