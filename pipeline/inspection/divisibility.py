"""Which group sizes divide a model's matrices, from their shapes alone; no torch, no weights.

Standard library only: the quantizers' environments ask too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pipeline.core.errors import StageError
from recipes.group_sizes import rows_to_divide, sizes_to_try

if TYPE_CHECKING:
    from recipes.quantization import Quantization

# vLLM puts these above others into one matrix (k_proj between q_proj and v_proj, gate_proj over
# up_proj), where a block must not reach over the seam: `validate_fp8_block_shape` in its
# fp8_utils. The last of each matrix may end within a block.
ABOVE_A_SEAM = ("q_proj", "k_proj", "gate_proj", "w1")


def find_dividing(sizes: Sequence[int], columns: Iterable[int]) -> int | None:
    """The first of the sizes that divides all columns; None where none does."""
    widths = set(columns)
    for size in sizes:
        if all(width % size == 0 for width in widths):
            return size
    return None


def dividing_group_size(quantization: Mapping[str, Any], columns: Iterable[int]) -> int | None:
    """The group size to use; None where the recipe has no groups.

    Args:
        quantization: a recipe's, as plain data with every default filled in.
        columns: of all matrices that are quantized.

    Raises:
        StageError: none of the recipe's divides all columns; they are named.
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
    """The columns in the way of the recipe's group sizes, sorted; empty where one divides all.

    Args:
        columns: of all matrices that the recipe quantizes: one size has to divide all of them.
    """
    widths = set(columns)
    sizes = sizes_to_try(quantization.model_dump())
    if not sizes or find_dividing(sizes, widths):
        return ()
    return tuple(sorted(width for width in widths if width % min(sizes)))


def find_undivided_rows(
    quantization: Quantization, shapes: Mapping[str, Sequence[int]]
) -> dict[str, int]:
    """Layers whose rows the recipe's blocks do not divide, though vLLM needs it; and their rows."""
    block = rows_to_divide(quantization.model_dump())
    if block is None:
        return {}
    return {
        name: shape[0]
        for name, shape in shapes.items()
        if name.removesuffix(".weight").rpartition(".")[2] in ABOVE_A_SEAM and shape[0] % block
    }
