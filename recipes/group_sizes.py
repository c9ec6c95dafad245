"""Columns that share a scale; standard library only, because quantizers' environments import it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pipeline.core.errors import StageError


def find_dividing(sizes: Sequence[int], columns: Iterable[int]) -> int | None:
    """Return the first size that divides all columns; None if none does."""
    widths = set(columns)
    return next((size for size in sizes if all(width % size == 0 for width in widths)), None)


def dividing_group_size(sizes: Sequence[int], columns: Iterable[int]) -> int | None:
    """Return the group size to use; None without sizes.

    `sizes` are in the order to try, `columns` those of all quantized matrices. Raises StageError if
    no size divides all.
    """
    widths = set(columns)
    size = find_dividing(sizes, widths)
    if sizes and size is None:
        raise StageError(
            f"no group size of {list(sizes)} divides layers with {sorted(widths)} columns",
            where="recipe key quantization.group_size",
            hint="use a recipe whose quantization.smaller_group_sizes has one that divides them, "
            "or one without groups, such as fp8-dynamic",
        )
    return size
