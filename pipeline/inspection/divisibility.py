"""Group sizes that divide a model's matrices, from shapes alone.

Standard library only: the quantizers' environments import this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pipeline.core.errors import StageError
from recipes.group_sizes import rows_to_divide, sizes_to_try

if TYPE_CHECKING:
    from recipes.quantization import Quantization

# vLLM stacks these above others in one matrix (q, k, v; gate, up), and no block may cross the seam:
# `validate_fp8_block_shape` in its fp8_utils. The last part may end within a block.
ABOVE_A_SEAM = ("q_proj", "k_proj", "gate_proj", "w1")


def find_dividing(sizes: Sequence[int], columns: Iterable[int]) -> int | None:
    """Return the first size that divides all columns; None if none does."""
    widths = set(columns)
    for size in sizes:
        if all(width % size == 0 for width in widths):
            return size
    return None


def dividing_group_size(quantization: Mapping[str, Any], columns: Iterable[int]) -> int | None:
    """Return the group size to use; None for a recipe without groups.

    Args:
        quantization: a recipe's, as plain data with all defaults.
        columns: of all quantized matrices.

    Raises:
        StageError: no size divides all columns.
    """
    sizes, widths = sizes_to_try(quantization), set(columns)
    size = find_dividing(sizes, widths)
    if sizes and size is None:
        raise StageError(
            f"no group size of {list(sizes)} divides layers with {sorted(widths)} columns",
            where="recipe key quantization.group_size",
            hint="use a recipe whose quantization.smaller_group_sizes has one that divides them, "
            "or one without groups, such as fp8-dynamic",
        )
    return size


def find_undivided_columns(quantization: Quantization, columns: Iterable[int]) -> tuple[int, ...]:
    """Return the sorted columns that no group size of the recipe divides.

    Args:
        columns: of all quantized matrices, which share one group size.
    """
    widths = set(columns)
    sizes = sizes_to_try(quantization.model_dump())
    if not sizes or find_dividing(sizes, widths):
        return ()
    return tuple(sorted(width for width in widths if width % min(sizes)))


def find_undivided_rows(
    quantization: Quantization, shapes: Mapping[str, Sequence[int]]
) -> dict[str, int]:
    """Return layers, and their rows, where vLLM requires blocks that divide the rows."""
    block = rows_to_divide(quantization.model_dump())
    if block is None:
        return {}
    return {
        name: shape[0]
        for name, shape in shapes.items()
        if name.removesuffix(".weight").rpartition(".")[2] in ABOVE_A_SEAM and shape[0] % block
    }
