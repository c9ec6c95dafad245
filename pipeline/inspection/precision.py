"""Size of a matrix at a precision, with scales and zero points."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from pipeline.inspection.divisibility import find_dividing
from recipes.group_sizes import sizes_to_try
from recipes.quantization import (
    AutoAwqQuantization,
    AwqQuantization,
    GptqQuantization,
    NoQuantization,
    PresetQuantization,
    Quantization,
)

SCALE_BYTES = 2  # scales have the source's 16-bit type
SHAPE_BYTES = 16  # the unpacked shape: two 64-bit integers


@dataclass(frozen=True)
class Precision:
    """Storage format of a matrix."""

    name: str  # for tables
    bits: int  # of a weight
    group: int | None = None  # columns that share a scale; None for all of them
    rows: int | None = 1  # rows that share a scale; None for all of them
    scaled: bool = True  # has scales at all
    scale_bytes: int = SCALE_BYTES  # of one scale
    zero_points: bool = False  # has zero points too, as wide as a weight
    extra_bytes: int = 0  # other bytes for each matrix

    def matrix_bytes(self, rows: int, columns: int) -> int:
        """Return bytes of a matrix with these rows (outputs) and columns (inputs)."""
        weights = rows * columns * self.bits // 8
        if not self.scaled:
            return weights
        across = -(-columns // self.group) if self.group else 1
        scales = across * (-(-rows // self.rows) if self.rows else 1)
        zero_points = scales * self.bits // 8 if self.zero_points else 0
        return weights + self.scale_bytes * scales + zero_points + self.extra_bytes


# By compressed-tensors preset. Static FP8 also has an activation scale. NVFP4 has one 32-bit scale
# each for weights and activations, and an 8-bit float for each group.
PRESET_PRECISIONS = {
    "FP8_DYNAMIC": Precision("fp8, a scale a row", 8),
    "FP8_BLOCK": Precision("fp8, a scale a block of 128 x 128", 8, group=128, rows=128),
    "FP8": Precision("fp8, a scale a matrix", 8, rows=None, extra_bytes=SCALE_BYTES),
    "NVFP4": Precision("fp4, groups of 16", 4, group=16, scale_bytes=1, extra_bytes=8),
}

# Precisions that inspection shows for every checkpoint.
PRECISIONS = (
    Precision("16-bit", 16, scaled=False),
    Precision("fp8, a scale a row", 8),
    Precision("int8, a scale a row", 8),
    Precision(
        "4-bit, groups of 128, zero points",
        4,
        group=128,
        zero_points=True,
        extra_bytes=SHAPE_BYTES,
    ),
    Precision("4-bit, groups of 128, symmetric", 4, group=128, extra_bytes=SHAPE_BYTES),
)


def choose_precision(quantization: Quantization, columns: Iterable[int]) -> Precision | None:
    """Return the precision of a recipe for these columns; None for the baseline."""
    if isinstance(quantization, NoQuantization):
        return None
    if isinstance(quantization, PresetQuantization):
        return PRESET_PRECISIONS[quantization.scheme]
    if isinstance(quantization, GptqQuantization) and quantization.scheme == "W8A8":
        return Precision("int8, a scale a row", 8)
    bits = quantization.bits if isinstance(quantization, AwqQuantization) else 4
    asymmetric = isinstance(quantization, AutoAwqQuantization) or (
        isinstance(quantization, AwqQuantization) and not quantization.symmetric
    )
    kind = "zero points" if asymmetric else "symmetric"
    # AutoAWQ's format does not store the unpacked shape.
    extra = 0 if isinstance(quantization, AutoAwqQuantization) else SHAPE_BYTES
    precision = Precision(
        f"{bits}-bit, a scale a row", bits, zero_points=asymmetric, extra_bytes=extra
    )
    group = find_dividing(sizes_to_try(quantization.model_dump()), columns)
    if group is None:
        return precision
    return replace(precision, name=f"{bits}-bit, groups of {group}, {kind}", group=group)
