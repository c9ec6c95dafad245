"""Tensors that each weight format stores in the place of a layer's matrix: names, types, shapes.

The table follows compressed-tensors (`compressors/`), AutoAWQ (`awq/modules/linear/gemm.py`),
AutoGPTQ and GPTQModel (`qlinear`), ModelOpt's export and bitsandbytes (`functional.QuantState`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pipeline.core.errors import VerificationError
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

FLOATING = ("BF16", "F16", "F32", "F64")
SCALE_TYPES = ("BF16", "F16", "F32")
SCALAR: tuple[tuple[int, ...], ...] = ((1,), ())
INDEX_TYPES = ("I32", "I64")
WORD_BITS = 32
# Layouts that compressed-tensors does not dequantize; their headers are checked.
HEADERS_ONLY = (GPTQ, GPTQ_V2, BNB_4BIT, BNB_8BIT)
# Layouts whose groups fill the columns.
WHOLE_GROUPS = ("nvfp4-pack-quantized", "mxfp4-pack-quantized", AWQ_GEMM, MODELOPT_NVFP4)


@dataclass(frozen=True)
class StoredPart:
    """A tensor that a format stores for a layer: name suffix, possible types and shapes."""

    suffix: str
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...] = ()  # empty: any


def check_readable(form: WeightFormat) -> None:
    """Raise NotComparableError for an unknown format."""
    if form.name not in PARTS or (form.name == "pack-quantized" and form.bits not in (4, 8)):
        raise NotComparableError(
            f"verification cannot read the format '{form}'", hint=f"it reads {', '.join(PARTS)}"
        )


def has_numbers(form: WeightFormat) -> bool:
    """Return whether compressed-tensors dequantizes the format, without a column order."""
    return form.name not in HEADERS_ONLY and not form.reordered


def layer_parts(form: WeightFormat, rows: int, columns: int) -> list[StoredPart]:
    """Return the tensors that replace `X.weight`.

    Raises:
        NotComparableError: the format is unknown.
        VerificationError: its groups do not fit the layer.
    """
    check_readable(form)
    if form.group and columns % form.group and form.name in WHOLE_GROUPS:
        raise VerificationError(
            f"groups of {form.group} do not divide a layer of {columns} columns"
        )
    if form.name == AWQ_GEMM and rows % 8:
        raise VerificationError(f"AutoAWQ packs eight rows a word, and a layer has {rows}")
    return PARTS[form.name](form, rows, columns)


def scale_of(form: WeightFormat) -> str:
    """Return the suffix of an 8-bit layer's scales; DeepSeek's blocks have another."""
    return "weight_scale_inv" if form.name == FP8 and form.block else "weight_scale"


def _eight_bits(form: WeightFormat, rows: int, columns: int) -> list[StoredPart]:
    shapes = SCALAR if form.strategy == "tensor" else (form.scale_shape(rows, columns),)
    return [
        StoredPart("weight", ("F8_E4M3" if form.number == "float" else "I8",), ((rows, columns),)),
        StoredPart(scale_of(form), SCALE_TYPES, shapes),
        *([StoredPart("input_scale", SCALE_TYPES, SCALAR)] * form.static_input),
    ]


def _packed(form: WeightFormat, rows: int, columns: int) -> list[StoredPart]:
    words, down = (-(-size * form.bits // WORD_BITS) for size in (columns, rows))
    groups = form.scale_shape(rows, columns)[1]
    zeros = StoredPart("weight_zero_point", ("I32",), ((down, groups),))
    return [
        StoredPart("weight_packed", ("I32",), ((rows, words),)),
        StoredPart("weight_scale", SCALE_TYPES, ((rows, groups),)),
        StoredPart("weight_shape", INDEX_TYPES, ((2,),)),
        *([] if form.symmetric else [zeros]),
        *([StoredPart("weight_g_idx", INDEX_TYPES, ((columns,),))] * form.reordered),
    ]


def _nvfp4(form: WeightFormat, rows: int, columns: int) -> list[StoredPart]:
    return [
        *_mxfp4(form, rows, columns, "F8_E4M3"),
        StoredPart("weight_global_scale", ("F32",), SCALAR),
        *([StoredPart("input_global_scale", ("F32",), SCALAR)] * form.static_input),
    ]


def _mxfp4(form: WeightFormat, rows: int, columns: int, scale: str = "U8") -> list[StoredPart]:
    return [
        StoredPart("weight_packed", ("U8",), ((rows, columns // 2),)),
        StoredPart("weight_scale", (scale,), (form.scale_shape(rows, columns),)),
    ]


def _awq(form: WeightFormat, rows: int, columns: int) -> list[StoredPart]:
    groups, words = form.scale_shape(rows, columns)[1], rows * 4 // WORD_BITS
    return [
        StoredPart("qweight", ("I32",), ((columns, words),)),
        StoredPart("scales", ("F16", "BF16"), ((groups, rows),)),
        *([] if form.symmetric else [StoredPart("qzeros", ("I32",), ((groups, words),))]),
    ]


def _gptq(form: WeightFormat, rows: int, columns: int) -> list[StoredPart]:
    groups = form.scale_shape(rows, columns)[1]
    words, zeros = (-(-size * form.bits // WORD_BITS) for size in (columns, rows))
    return [
        StoredPart("qweight", ("I32",), ((words, rows),)),
        StoredPart("qzeros", ("I32",), ((groups, zeros),)),
        StoredPart("scales", SCALE_TYPES, ((groups, rows),)),
        StoredPart("g_idx", INDEX_TYPES, ((columns,),)),
    ]


def _modelopt_nvfp4(form: WeightFormat, rows: int, columns: int) -> list[StoredPart]:
    return [
        StoredPart("weight", ("U8",), ((rows, columns // 2),)),
        StoredPart("weight_scale", ("F8_E4M3",), (form.scale_shape(rows, columns),)),
        StoredPart("weight_scale_2", ("F32",), SCALAR),
        *([StoredPart("input_scale", ("F32",), SCALAR)] * form.static_input),
    ]


def _bnb_4bit(form: WeightFormat, rows: int, columns: int) -> list[StoredPart]:
    count, nested = rows * columns // 2, form.strategy == "nested"
    parts = [
        StoredPart("weight", ("U8",), ((count, 1), (1, count))),
        StoredPart("weight.absmax", ("U8",) if nested else ("F32",)),
        StoredPart("weight.quant_map", ("F32",), ((16,),)),
        StoredPart(f"weight.quant_state.bitsandbytes__{form.number}", ("U8",)),
    ]
    if nested:
        parts.append(StoredPart("weight.nested_absmax", ("F32",)))
        parts.append(StoredPart("weight.nested_quant_map", ("F32",), ((256,),)))
    return parts


def _bnb_8bit(form: WeightFormat, rows: int, columns: int) -> list[StoredPart]:
    return [
        StoredPart("weight", ("I8",), ((rows, columns),)),
        StoredPart("SCB", ("F32",), ((rows,),)),
        StoredPart("weight_format", ("U8",)),
    ]


def _plain(form: WeightFormat, rows: int, columns: int) -> list[StoredPart]:
    return [StoredPart("weight", FLOATING, ((rows, columns),))]


PARTS: dict[str, Callable[[WeightFormat, int, int], list[StoredPart]]] = {
    "float-quantized": _eight_bits,
    "naive-quantized": _eight_bits,
    "int-quantized": _eight_bits,
    "pack-quantized": _packed,
    "nvfp4-pack-quantized": _nvfp4,
    "mxfp4-pack-quantized": _mxfp4,
    AWQ_GEMM: _awq,
    GPTQ: _gptq,
    GPTQ_V2: _gptq,
    FP8: _eight_bits,
    MODELOPT_FP8: _eight_bits,
    MODELOPT_NVFP4: _modelopt_nvfp4,
    BNB_4BIT: _bnb_4bit,
    BNB_8BIT: _bnb_8bit,
    PLAIN: _plain,
}
