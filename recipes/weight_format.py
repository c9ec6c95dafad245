"""Storage format of quantized weights, and their size."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from prepare.errors import StageError


def find_dividing(sizes: Sequence[int], columns: Iterable[int]) -> int | None:
    """Return the first size that divides all columns."""
    widths = set(columns)
    return next((size for size in sizes if all(width % size == 0 for width in widths)), None)


def dividing_group_size(sizes: Sequence[int], columns: Iterable[int]) -> int | None:
    """Return the group size to use; None without sizes.

    StageError if none of `sizes`, in order, divides all columns.
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


AWQ_GEMM = "awq-gemm"  # AutoAWQ's layout
GPTQ = "gptq"
GPTQ_V2 = "gptq_v2"  # AutoGPTQ's and GPTQModel's
FP8 = "fp8"  # `quant_method: fp8`: DeepSeek's blocks, or a scale a matrix
MODELOPT_FP8 = "modelopt-fp8"
MODELOPT_NVFP4 = "modelopt-nvfp4"
PLAIN = "unquantized"  # all other names are compressed-tensors'
SCALE_BYTES = 2  # scales have the source's 16-bit type
# Other bytes of a matrix: the unpacked shape (two 64-bit integers), the 32-bit scale of a matrix.
EXTRA_BYTES = {"pack-quantized": 16, "nvfp4-pack-quantized": 4}


@dataclass(frozen=True)
class WeightFormat:
    """Storage format of a layer's weights."""

    name: str  # compressed-tensors' format, or one of the names above
    bits: int  # of a weight
    number: str  # int or float
    # Unit of a scale: tensor, channel (a row), block, group, tensor_group (groups, and one more
    # scale for the matrix); none for unquantized weights.
    strategy: str
    group: int | None = None  # of a group, if any
    block: tuple[int, int] | None = None  # rows and columns, if any
    symmetric: bool = True  # without zero points
    reordered: bool = False  # each column has a group index (`weight_g_idx`)
    static_input: bool = False  # activations also have a stored scale

    def __str__(self) -> str:
        if self.strategy == "none":
            return f"{self.name}, {self.bits} bits"
        shared = {"group": f"groups of {self.group}", "block": f"blocks of {self.block}"}
        words = [self.name, f"{self.bits}-bit {self.number}"]
        words.append(shared.get(self.strategy, f"a scale a {self.strategy}"))
        words.append("symmetric" if self.symmetric else "zero points")
        return ", ".join(words + ["static activations"] * self.static_input)

    @property
    def label(self) -> str:
        if self.strategy == "none":
            return f"{self.bits}-bit"
        if self.strategy == "group":
            points = "symmetric" if self.symmetric else "zero points"
            return f"{self.bits}-bit, groups of {self.group}, {points}"
        unit = {"channel": "a scale a row", "tensor": "a scale a matrix"}.get(self.strategy)
        if self.block:
            unit = f"a scale a block of {self.block[0]} x {self.block[1]}"
        number = "fp" if self.number == "float" else "int"
        return f"{number}{self.bits}, {unit or f'groups of {self.group}'}"

    @property
    def shared_columns(self) -> int | None:
        """Columns that share a scale and must divide a matrix's, or None."""
        return self.block[1] if self.block else self.group

    def scale_shape(self, rows: int, columns: int) -> tuple[int, ...]:
        """Return the shape of scales in compressed-tensors' layout."""
        if self.strategy == "tensor":
            return (1,)
        if self.block is not None:
            return (-(-rows // self.block[0]), -(-columns // self.block[1]))
        return (rows, -(-columns // self.group) if self.group else 1)

    def bytes_on_cpu(self, size: int, *, wide: bool) -> int:
        """Return the memory of `size` bytes of weights on a CPU server, which widens most.

        `wide`: float32, which FP8 weights always get.
        """
        if self.bits > 8 or self.name == "int-quantized":
            return size
        if self.number == "float":
            return size * (32 if wide or self.bits == 8 else 16) // self.bits
        if self.bits == 8:
            return size * (4 if wide else 2)
        return size * 8 if wide else size

    def matrix_bytes(self, rows: int, columns: int) -> int:
        """Return bytes for rows (outputs) and columns (inputs)."""
        weights = rows * columns * self.bits // 8
        if self.strategy == "none":
            return weights
        scales = math.prod(self.scale_shape(rows, columns))
        in_two_levels = self.strategy == "tensor_group"  # 8-bit scales, and 32-bit ones above
        in_one_byte = self.number == "float" and self.bits == 4
        scale_bytes = scales * (1 if in_one_byte else SCALE_BYTES)
        zero_points = 0 if self.symmetric else scales * self.bits // 8
        extra = EXTRA_BYTES.get(self.name, 0)
        if self.static_input:
            extra += 4 if in_two_levels else SCALE_BYTES
        return weights + scale_bytes + zero_points + extra
