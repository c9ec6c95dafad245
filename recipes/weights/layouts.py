"""Layouts of quantized weights: a layer's tensors, and its numbers by compressed-tensors.

The table follows compressed-tensors (`compressors/`), AutoAWQ (`awq/modules/linear/gemm.py`),
AutoGPTQ and GPTQModel (`qlinear`), and ModelOpt's export.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Any

from prepare.errors import VerificationError
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

FLOATING = ("BF16", "F16", "F32", "F64")
SCALE_TYPES = ("BF16", "F16", "F32")
SCALAR: tuple[tuple[int, ...], ...] = ((1,), ())
INDEX_TYPES = ("I32", "I64")
WORD_BITS = 32
# Other programs' layouts, under the library's names of them.
FORMATS = {
    AWQ_GEMM: "pack-quantized",
    FP8: "float-quantized",
    MODELOPT_FP8: "float-quantized",
    MODELOPT_NVFP4: "nvfp4-pack-quantized",
}
# Reads a tensor by its suffix, or these rows (and columns) of it.
Read = Callable[..., Any]
# Layouts whose groups fill the columns.
WHOLE_GROUPS = ("nvfp4-pack-quantized", "mxfp4-pack-quantized", AWQ_GEMM, MODELOPT_NVFP4)


class NotComparableError(VerificationError):
    """Unsupported layout of weights that may be correct."""


@dataclass(frozen=True)
class StoredPart:
    """A tensor of a layer: name suffix, possible types and shapes."""

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
    """Return whether compressed-tensors dequantizes it, without a column order."""
    return form.name not in (GPTQ, GPTQ_V2) and not form.reordered


def layer_parts(form: WeightFormat, rows: int, columns: int) -> list[StoredPart]:
    """Return the tensors that replace `X.weight`.

    NotComparableError for an unknown format, VerificationError if its groups do not fit.
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
    """Return the suffix of 8-bit scales; DeepSeek's blocks have another."""
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
    groups = form.scale_shape(rows, columns)[-1]  # 1 of a matrix with one scale
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
    groups = form.scale_shape(rows, columns)[1]
    words = _words(form, rows)
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


def dequantize(
    form: WeightFormat, stored: Container[str], part: Read, rows: slice, shape: tuple[int, ...]
) -> Any:
    """Return rows x columns in float32.

    `stored` are the layer's suffixes. `rows` starts at a multiple of 128: whole blocks, or rows of
    one. `shape` is of the whole matrix.
    """
    import torch
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    if form.name == PLAIN:
        return part("weight", rows).float()
    height = rows.stop - rows.start
    columns = shape[1]
    read = _from_awq if form.name == AWQ_GEMM else _stored
    state = read(form, stored, part, rows)
    if "weight_packed" in state and form.number == "int":
        state["weight_shape"] = torch.tensor([height, columns])
    # A part of one block counts as a whole block.
    block = [min(form.block[0], height), min(form.block[1], columns)] if form.block else None
    arguments = QuantizationArgs(
        num_bits=form.bits,
        type=form.number,
        strategy=form.strategy,
        group_size=form.group,
        block_structure=block,
        symmetric=form.symmetric,
    )
    scheme = QuantizationScheme(targets=["Linear"], weights=arguments)
    compressor = BaseCompressor.get_value_from_registry(FORMATS.get(form.name, form.name))
    if block:  # the library takes whole blocks only, so the last are filled
        edge = (0, -columns % block[1], 0, -height % block[0])
        state["weight"] = torch.nn.functional.pad(state["weight"].float(), edge)
    return compressor.decompress(state, scheme)["weight"][:height, :columns].float()


def _stored(form: WeightFormat, stored: Container[str], part: Read, rows: slice) -> dict[str, Any]:
    """Return compressed-tensors' tensors of these rows, scales in float32 if possible."""
    name = "weight_packed" if "weight_packed" in stored else "weight"
    suffix = "weight_scale_inv" if "weight_scale_inv" in stored else "weight_scale"
    weight = part(name, rows)
    if form.strategy == "tensor":
        scale = part(suffix).reshape(1)
    elif form.block:
        scale = part(suffix, _every(rows, form.block[0]))
    else:
        scale = part(suffix, rows)
    if form.bits == 8 or form.number == "int":
        scale = scale.float()
    if form.name == MODELOPT_NVFP4:
        factor = 1 / part("weight_scale_2").reshape(1)
        return {"weight_packed": weight, "weight_scale": scale, "weight_global_scale": factor}
    state = {name: weight, "weight_scale": scale}
    if "weight_zero_point" in stored:
        state["weight_zero_point"] = part("weight_zero_point", _every(rows, WORD_BITS // form.bits))
    if "weight_global_scale" in stored:
        state["weight_global_scale"] = part("weight_global_scale").reshape(1)
    return state


def _every(rows: slice, number: int) -> slice:
    """Return the rows of a tensor that has one for `number` of a matrix."""
    return slice(rows.start // number, -(-rows.stop // number))


def _from_awq(
    form: WeightFormat, stored: Container[str], part: Read, rows: slice
) -> dict[str, Any]:
    """Return these rows of AutoAWQ's layout: transposed, eight rows in a word."""
    from compressed_tensors.entrypoints.convert import AutoAWQConverter

    words = slice(rows.start // 8, rows.stop // 8)
    every = slice(None)
    state = {
        "x.qweight": part("qweight", every, words),
        "x.scales": part("scales", every, rows).float(),
    }
    if "qzeros" in stored:
        state["x.qzeros"] = part("qzeros", every, words)
    converter = AutoAWQConverter(group_size=form.group, zero_point=not form.symmetric, ignore=())
    return {name.removeprefix("x."): tensor for name, tensor in converter.process(state).items()}
