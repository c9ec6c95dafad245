"""Which group sizes divide a model's matrices, from their widths alone; no torch, no weights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def first_dividing(sizes: Sequence[int], columns: Iterable[int]) -> int | None:
    """The first of the sizes that divides all columns; None where none does."""
    widths = set(columns)
    for size in sizes:
        if all(width % size == 0 for width in widths):
            return size
    return None
