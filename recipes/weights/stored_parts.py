"""Tensors that each weight format stores for a layer's matrix: names, types, shapes.

The table follows compressed-tensors (`compressors/`), AutoAWQ (`awq/modules/linear/gemm.py`),
AutoGPTQ and GPTQModel (`qlinear`), and ModelOpt's export.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pipeline.core.errors import VerificationError
from recipes.weight_format import (
    AWQ_GEMM,
    FP8,
    GPTQ,
    GPTQ_V2,
    MODELOPT_FP8,
    MODELOPT_NVFP4,
    PLAIN,
    WeightFormat,
)
from recipes.weights.weight_format import NotComparableError

FLOATING = ("BF16", "F16", "F32", "F64")
SCALE_TYPES = ("BF16", "F16", "F32")
SCALAR: tuple[tuple[int, ...], ...] = ((1,), ())
INDEX_TYPES = ("I32", "I64")
# Layouts whose groups fill the columns.
WHOLE_GROUPS = ("nvfp4-pack-quantized", "mxfp4-pack-quantized", AWQ_GEMM, MODELOPT_NVFP4)


@dataclass(frozen=True)
class StoredPart:
    """A tensor that a format stores for a layer: name suffix, possible types and shapes."""

    suffix: str
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]


def check_readable(form: WeightFormat) -> None:
    """Raise NotComparableError for an unknown format."""
    if form.name not in PARTS or (form.name == "pack-quantized" and form.bits not in (4, 8)):
        raise NotComparableError(
            f"verification cannot read the format '{form}'", hint=f"it reads {', '.join(PARTS)}"
        )


def has_numbers(form: WeightFormat) -> bool:
    """Return whether compressed-tensors dequantizes the format, without a column order."""
    return form.name not in (GPTQ, GPTQ_V2) and not form.reordered


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
    return [StoredPart(*part) for part in PARTS[form.name](form, rows, columns)]


def scale_of(form: WeightFormat) -> str:
    """Return the suffix of an 8-bit layer's scales; DeepSeek's blocks have another."""
    return "weight_scale_inv" if form.name == FP8 and form.block else "weight_scale"


Part = tuple[str, tuple[str, ...], tuple[tuple[int, ...], ...]]


def _words(form: WeightFormat, size: int) -> int:
    return -(-size * form.bits // 32)


def _eight_bits(form: WeightFormat, rows: int, columns: int) -> list[Part]:
    shapes = SCALAR if form.strategy == "tensor" else (form.scale_shape(rows, columns),)
    return [
        ("weight", ("F8_E4M3" if form.number == "float" else "I8",), ((rows, columns),)),
        (scale_of(form), SCALE_TYPES, shapes),
        *([("input_scale", SCALE_TYPES, SCALAR)] * form.static_input),
    ]


def _packed(form: WeightFormat, rows: int, columns: int) -> list[Part]:
    groups = form.scale_shape(rows, columns)[1]
    zeros = ("weight_zero_point", ("I32",), ((_words(form, rows), groups),))
    return [
        ("weight_packed", ("I32",), ((rows, _words(form, columns)),)),
        ("weight_scale", SCALE_TYPES, ((rows, groups),)),
        ("weight_shape", INDEX_TYPES, ((2,),)),
        *([] if form.symmetric else [zeros]),
        *([("weight_g_idx", INDEX_TYPES, ((columns,),))] * form.reordered),
    ]


def _mxfp4(form: WeightFormat, rows: int, columns: int) -> list[Part]:
    dtype = "U8" if form.strategy == "group" else "F8_E4M3"
    return [
        ("weight_packed", ("U8",), ((rows, columns // 2),)),
        ("weight_scale", (dtype,), (form.scale_shape(rows, columns),)),
    ]


def _nvfp4(form: WeightFormat, rows: int, columns: int) -> list[Part]:
    return [
        *_mxfp4(form, rows, columns),
        ("weight_global_scale", ("F32",), SCALAR),
        *([("input_global_scale", ("F32",), SCALAR)] * form.static_input),
    ]


def _modelopt_nvfp4(form: WeightFormat, rows: int, columns: int) -> list[Part]:
    (_, dtypes, shapes), scale = _mxfp4(form, rows, columns)
    return [
        ("weight", dtypes, shapes),
        scale,
        ("weight_scale_2", ("F32",), SCALAR),
        ("input_scale", ("F32",), SCALAR),
    ]


def _awq(form: WeightFormat, rows: int, columns: int) -> list[Part]:
    groups, words = form.scale_shape(rows, columns)[1], _words(form, rows)
    return [
        ("qweight", ("I32",), ((columns, words),)),
        ("scales", ("F16", "BF16"), ((groups, rows),)),
        *([] if form.symmetric else [("qzeros", ("I32",), ((groups, words),))]),
    ]


def _gptq(form: WeightFormat, rows: int, columns: int) -> list[Part]:
    groups = form.scale_shape(rows, columns)[1]
    return [
        ("qweight", ("I32",), ((_words(form, columns), rows),)),
        ("qzeros", ("I32",), ((groups, _words(form, rows)),)),
        ("scales", SCALE_TYPES, ((groups, rows),)),
        ("g_idx", INDEX_TYPES, ((columns,),)),
    ]


PARTS: dict[str, Callable[[WeightFormat, int, int], list[Part]]] = {
    **dict.fromkeys(
        ("float-quantized", "naive-quantized", "int-quantized", FP8, MODELOPT_FP8), _eight_bits
    ),
    "pack-quantized": _packed,
    "nvfp4-pack-quantized": _nvfp4,
    "mxfp4-pack-quantized": _mxfp4,
    AWQ_GEMM: _awq,
    **dict.fromkeys((GPTQ, GPTQ_V2), _gptq),
    MODELOPT_NVFP4: _modelopt_nvfp4,
    PLAIN: lambda form, rows, columns: [("weight", FLOATING, ((rows, columns),))],
}
