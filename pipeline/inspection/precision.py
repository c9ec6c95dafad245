"""How many bytes a matrix takes at a precision, its scales and zero points included."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from recipes.schema import AwqQuantization, NoQuantization, Quantization

SCALE_BYTES = 2  # scales are kept in the source's 16-bit type
SHAPE_BYTES = 16  # compressed-tensors keeps the unpacked shape as two 64-bit numbers


@dataclass(frozen=True)
class Precision:
    """How a matrix is stored.

    Attributes:
        name: for tables.
        bits: of a weight.
        group: columns that share a scale; None for a scale a row.
        scaled: has scales at all.
        zero_points: has zero points too, as wide as a weight.
    """

    name: str
    bits: int
    group: int | None = None
    scaled: bool = True
    zero_points: bool = False

    def matrix_bytes(self, rows: int, columns: int) -> int:
        """Bytes of a matrix of so many rows (outputs) and columns (inputs)."""
        weights = rows * columns * self.bits // 8
        if not self.scaled:
            return weights
        if self.group is None:
            return weights + SCALE_BYTES * rows
        groups = rows * -(-columns // self.group)
        zero_points = groups * self.bits // 8 if self.zero_points else 0
        return weights + SCALE_BYTES * groups + zero_points + SHAPE_BYTES


# What inspection shows for every checkpoint, whichever recipes there are.
PRECISIONS = (
    Precision("16-bit", 16, scaled=False),
    Precision("fp8, a scale a row", 8),
    Precision("int8, a scale a row", 8),
    Precision("4-bit, groups of 128, zero points", 4, group=128, zero_points=True),
    Precision("4-bit, groups of 128, symmetric", 4, group=128),
)


def precision_of(quantization: Quantization, columns: Iterable[int]) -> Precision | None:
    """The precision that a recipe gives to the matrices that it quantizes.

    Args:
        quantization: of the recipe.
        columns: of all those matrices: one group size has to divide all of them.

    Returns:
        None for the recipe that changes nothing.
    """
    if isinstance(quantization, NoQuantization):
        return None
    if not isinstance(quantization, AwqQuantization):
        return Precision("fp8, a scale a row", 8)
    kind = "symmetric" if quantization.symmetric else "zero points"
    precision = Precision(
        f"{quantization.bits}-bit, a scale a row",
        quantization.bits,
        zero_points=not quantization.symmetric,
    )
    group = dividing_group(quantization, columns)
    if group is None:
        return precision
    return replace(
        precision, name=f"{quantization.bits}-bit, groups of {group}, {kind}", group=group
    )


def dividing_group(quantization: AwqQuantization, columns: Iterable[int]) -> int | None:
    """The first of the recipe's group sizes that divides all of them; None where none does."""
    widths = set(columns)
    for size in (quantization.group_size, *quantization.smaller_group_sizes):
        if all(width % size == 0 for width in widths):
            return size
    return None
