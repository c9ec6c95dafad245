"""Dequantization of a layer's weights, some rows at a time, for every format.

The formats follow the libraries' source: compressed-tensors 0.19 (`compressors/`), AutoAWQ 0.2.9
(`awq/utils/packing_utils.py`). End-to-end tests compare these readers with both, bit by bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from pipeline.core.errors import VerificationError
from pipeline.verification.number_types import Floats, unpack_awq, unpack_fp4, unpack_integers
from pipeline.verification.other_layouts import (
    BitsAndBytes4,
    BitsAndBytes8,
    Gptq,
    ModelOptNvfp4,
    PlainWeights,
)
from pipeline.verification.stored_part import (
    SCALAR,
    SCALE_TYPES,
    WORD_BITS,
    Shape,
    StoredPart,
    check_scale,
    group_of_columns,
)
from pipeline.verification.tensor_files import StoredTensor
from pipeline.verification.weight_format import NotComparableError
from recipes.weight_format import (
    AWQ_GEMM,
    BNB_4BIT,
    BNB_8BIT,
    FP8,
    GPTQ,
    GPTQ_V2,
    MODELOPT_FP8,
    MODELOPT_NVFP4,
    PLAIN,
    WeightFormat,
)


class LayerDequantizer(Protocol):
    """Reader of a layer's weights as rows x columns of the source's matrix."""

    def rows(self, begin: int, end: int) -> Floats:
        """Return rows `begin` (a multiple of chunk_size.ROW_STEP) to `end` as float32."""


def check_readable(form: WeightFormat) -> None:
    """Raise NotComparableError for a format without a reader."""
    if form.name not in READERS or (form.name == "pack-quantized" and form.bits not in (4, 8)):
        raise NotComparableError(
            f"verification cannot read the format '{form}'",
            hint=f"it reads {', '.join(READERS)}",
        )


def layer_parts(form: WeightFormat, rows: int, columns: int) -> list[StoredPart]:
    """Return the tensors that replace `X.weight`, with types and shapes."""
    check_readable(form)
    if form.group and columns % form.group and form.name in WHOLE_GROUPS:
        raise VerificationError(
            f"groups of {form.group} do not divide a layer of {columns} columns"
        )
    return READERS[form.name].parts(form, rows, columns)


def layer_weights(
    form: WeightFormat, module: str, shape: Shape, tensors: Mapping[str, StoredTensor]
) -> LayerDequantizer:
    """Return the reader of a layer, whose types and shapes were checked."""
    parts = {part.suffix: tensors[f"{module}.{part.suffix}"] for part in layer_parts(form, *shape)}
    for suffix in ("input_scale", "input_global_scale"):
        if suffix in parts:
            check_scale(parts[suffix], parts[suffix].floats())
    return READERS[form.name](form, shape, parts)


def scale_of(form: WeightFormat) -> str:
    """Return the suffix of an 8-bit layer's scales; DeepSeek's blocks have another."""
    return "weight_scale_inv" if form.name == FP8 and form.block else "weight_scale"


class EightBitWeights:
    """FP8 or INT8 weights, scaled by tensor, row or block."""

    def __init__(self, form: WeightFormat, shape: Shape, parts: dict[str, StoredTensor]) -> None:
        self.form, self.weight, self.scale = form, parts["weight"], parts[scale_of(form)]

    @staticmethod
    def parts(form: WeightFormat, rows: int, columns: int) -> list[StoredPart]:
        stored = "F8_E4M3" if form.number == "float" else "I8"
        shapes = SCALAR if form.strategy == "tensor" else (form.scale_shape(rows, columns),)
        parts = [
            StoredPart("weight", (stored,), ((rows, columns),)),
            StoredPart(scale_of(form), SCALE_TYPES, shapes),
        ]
        if form.static_input:
            parts.append(StoredPart("input_scale", SCALE_TYPES, SCALAR))
        return parts

    def rows(self, begin: int, end: int) -> Floats:
        """Implement :class:`LayerDequantizer`."""
        values = self.weight.floats(begin, end)
        _check_numbers(self.weight, values)
        shared = self.form.block or ((1, self.form.group) if self.form.group else None)
        if shared is None:
            per_row = self.form.strategy != "tensor"
            scale = self.scale.floats(*((begin, end) if per_row else ()))
            values *= check_scale(self.scale, scale)
            return values
        height, width = shared
        blocks = check_scale(self.scale, self.scale.floats(begin // height, -(-end // height)))
        by_row = np.repeat(blocks, height, axis=0)[: len(values)]
        for block in range(by_row.shape[1]):
            values[:, block * width : (block + 1) * width] *= by_row[:, block, None]
        return values


class PackedIntWeights:
    """4- or 8-bit integers in 32-bit words, grouped by columns, with optional zero points."""

    def __init__(self, form: WeightFormat, shape: Shape, parts: dict[str, StoredTensor]) -> None:
        self.form, self.columns = form, shape[1]
        self.packed, self.scale = parts["weight_packed"], parts["weight_scale"]
        self.zero_point = parts.get("weight_zero_point")
        self.groups = group_of_columns(parts.get("weight_g_idx"), self.scale.shape[1])
        stored = parts["weight_shape"].floats().tolist()
        if stored != list(shape):
            raise VerificationError(
                f"'{parts['weight_shape'].name}' has {[int(n) for n in stored]}, "
                f"the source's shape is {list(shape)}",
                where=str(parts["weight_shape"].path),
            )

    @staticmethod
    def parts(form: WeightFormat, rows: int, columns: int) -> list[StoredPart]:
        words = -(-columns * form.bits // WORD_BITS)
        groups = form.scale_shape(rows, columns)[1]
        parts = [
            StoredPart("weight_packed", ("I32",), ((rows, words),)),
            StoredPart("weight_scale", SCALE_TYPES, ((rows, groups),)),
            StoredPart("weight_shape", ("I64", "I32"), ((2,),)),
        ]
        if not form.symmetric:
            words = -(-rows * form.bits // WORD_BITS)
            parts.append(StoredPart("weight_zero_point", ("I32",), ((words, groups),)))
        if form.reordered:
            parts.append(StoredPart("weight_g_idx", ("I32", "I64"), ((columns,),)))
        return parts

    def rows(self, begin: int, end: int) -> Floats:
        """Implement :class:`LayerDequantizer`."""
        height = min(end, self.packed.shape[0]) - begin
        values = unpack_integers(self.packed.read(begin, end), self.form.bits)
        values = values.reshape(height, -1)[:, : self.columns]
        scale = check_scale(self.scale, self.scale.floats(begin, end))
        offset = self._zero_points(begin, end, height)
        if self.groups is None and self.columns % scale.shape[1] == 0:
            grouped = np.ascontiguousarray(values).reshape(*scale.shape, -1)
            if offset is not None:
                grouped -= offset[:, :, None]
            grouped *= scale[:, :, None]
            return grouped.reshape(height, -1)
        groups: Any = self.groups
        if groups is None:
            groups = np.arange(self.columns) // (self.form.group or self.columns)
        if offset is not None:
            values = values - offset[:, groups]
        return np.asarray(values * scale[:, groups])

    def _zero_points(self, begin: int, end: int, height: int) -> Floats | None:
        if self.zero_point is None:
            return None
        in_word = WORD_BITS // self.form.bits
        first, last = begin // in_word, -(-end // in_word)
        words = self.zero_point.read(first, last).view("<i4").reshape(-1, self.scale.shape[1])
        across = np.ascontiguousarray(words.T)
        numbers = unpack_integers(across.view(np.uint8).reshape(-1), self.form.bits)
        return numbers.reshape(len(across), -1).T[:height]


class Nvfp4:
    """e2m1 values, an e4m3 scale for each 16 of them, and one divisor for the matrix."""

    def __init__(self, form: WeightFormat, shape: Shape, parts: dict[str, StoredTensor]) -> None:
        self.packed, self.scale = parts["weight_packed"], parts["weight_scale"]
        divisor = parts["weight_global_scale"]
        self.divisor = check_scale(divisor, divisor.floats()).reshape(())

    @staticmethod
    def parts(form: WeightFormat, rows: int, columns: int) -> list[StoredPart]:
        parts = [
            StoredPart("weight_packed", ("U8",), ((rows, columns // 2),)),
            StoredPart("weight_scale", ("F8_E4M3",), (form.scale_shape(rows, columns),)),
            StoredPart("weight_global_scale", ("F32",), SCALAR),
        ]
        if form.static_input:
            parts.append(StoredPart("input_global_scale", ("F32",), SCALAR))
        return parts

    def rows(self, begin: int, end: int) -> Floats:
        """Implement :class:`LayerDequantizer`."""
        values = unpack_fp4(self.packed.read(begin, end))
        # A group of zeros has the scale 0, because the divisor allows no smaller one.
        scale = check_scale(self.scale, self.scale.floats(begin, end), zero_allowed=True)
        grouped = values.reshape(*scale.shape, -1)
        grouped *= (scale / self.divisor)[:, :, None]
        return grouped.reshape(len(scale), -1)


class Mxfp4:
    """e2m1 values, and a biased exponent of two for each 32 of them."""

    BIAS = 127

    def __init__(self, form: WeightFormat, shape: Shape, parts: dict[str, StoredTensor]) -> None:
        self.packed, self.scale = parts["weight_packed"], parts["weight_scale"]

    @staticmethod
    def parts(form: WeightFormat, rows: int, columns: int) -> list[StoredPart]:
        return [
            StoredPart("weight_packed", ("U8",), ((rows, columns // 2),)),
            StoredPart("weight_scale", ("U8",), (form.scale_shape(rows, columns),)),
        ]

    def rows(self, begin: int, end: int) -> Floats:
        """Implement :class:`LayerDequantizer`."""
        values = unpack_fp4(self.packed.read(begin, end))
        exponents = self.scale.floats(begin, end).astype(np.int32) - self.BIAS
        grouped = values.reshape(*exponents.shape, -1)
        return np.ldexp(grouped, exponents[:, :, None]).reshape(len(exponents), -1)


class AwqGemm:
    """AutoAWQ's layout: a transposed matrix, eight outputs in a word, groups along the inputs.

    The packed matrix, a quarter of the source's size, is loaded completely: source rows cross it.
    """

    def __init__(self, form: WeightFormat, shape: Shape, parts: dict[str, StoredTensor]) -> None:
        if shape[0] % 8:
            raise VerificationError(
                f"'{parts['qweight'].name}' packs eight rows a word, and the layer has {shape[0]}",
                where=str(parts["qweight"].path),
            )
        self.columns = shape[1]
        words = shape[0] // 8
        self.packed = parts["qweight"].read().view("<i4").reshape(-1, words)
        self.scale = check_scale(parts["scales"], parts["scales"].floats())
        zeros = parts.get("qzeros")
        self.zeros = None if zeros is None else unpack_awq(zeros.read()).reshape(-1, shape[0])

    @staticmethod
    def parts(form: WeightFormat, rows: int, columns: int) -> list[StoredPart]:
        groups = form.scale_shape(rows, columns)[1]
        parts = [
            StoredPart("qweight", ("I32",), ((columns, rows * 4 // WORD_BITS),)),
            StoredPart("scales", ("F16", "BF16"), ((groups, rows),)),
        ]
        if not form.symmetric:
            parts.append(StoredPart("qzeros", ("I32",), ((groups, rows * 4 // WORD_BITS),)))
        return parts

    def rows(self, begin: int, end: int) -> Floats:
        """Implement :class:`LayerDequantizer`."""
        words = np.ascontiguousarray(self.packed[:, begin // 8 : -(-end // 8)])
        scale = self.scale[:, begin:end]
        values = unpack_awq(words.view(np.uint8).reshape(-1))
        grouped = values.reshape(scale.shape[0], -1, scale.shape[1])
        grouped -= 8.0 if self.zeros is None else self.zeros[:, None, begin:end]
        grouped *= scale[:, None, :]
        return np.ascontiguousarray(grouped.reshape(self.columns, -1).T)


Reader = (
    EightBitWeights
    | PackedIntWeights
    | Nvfp4
    | Mxfp4
    | AwqGemm
    | Gptq
    | ModelOptNvfp4
    | BitsAndBytes4
    | BitsAndBytes8
    | PlainWeights
)
READERS: dict[str, type[Reader]] = {
    "float-quantized": EightBitWeights,
    "naive-quantized": EightBitWeights,
    "int-quantized": EightBitWeights,
    "pack-quantized": PackedIntWeights,
    "nvfp4-pack-quantized": Nvfp4,
    "mxfp4-pack-quantized": Mxfp4,
    AWQ_GEMM: AwqGemm,
    GPTQ: Gptq,
    GPTQ_V2: Gptq,
    FP8: EightBitWeights,
    MODELOPT_FP8: EightBitWeights,
    MODELOPT_NVFP4: ModelOptNvfp4,
    BNB_4BIT: BitsAndBytes4,
    BNB_8BIT: BitsAndBytes8,
    PLAIN: PlainWeights,
}


# Layouts whose groups fill the columns.
WHOLE_GROUPS = ("nvfp4-pack-quantized", "mxfp4-pack-quantized", AWQ_GEMM, MODELOPT_NVFP4)


def _check_numbers(tensor: StoredTensor, values: Floats) -> None:
    # The sum is NaN if any value is, and 8-bit values cannot overflow it.
    if tensor.dtype == "F8_E4M3" and np.isnan(values.sum()):
        raise VerificationError(
            f"'{tensor.name}' has values that are not finite",
            where=str(tensor.path),
            hint="check whether the source's layer has such values too",
        )
