"""Rows of one layer's weights, dequantized by compressed-tensors."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any

import torch

from recipes.weight_format import (
    AWQ_GEMM,
    FP8,
    MODELOPT_FP8,
    MODELOPT_NVFP4,
    PLAIN,
    WeightFormat,
)

WORD_BITS = 32
# Other programs' layouts, under the library's names of them.
FORMATS = {
    AWQ_GEMM: "pack-quantized",
    FP8: "float-quantized",
    MODELOPT_FP8: "float-quantized",
    MODELOPT_NVFP4: "nvfp4-pack-quantized",
}
# Reads a tensor by its suffix, or these rows (and columns) of it.
Part = Callable[..., Any]


def dequantize(
    form: WeightFormat, stored: Container[str], part: Part, rows: slice, shape: tuple[int, ...]
) -> Any:
    """Return rows x columns in float32.

    Args:
        stored: suffixes of the layer's tensors.
        rows: a multiple of 128 to begin with; whole blocks, or rows of a single block.
        shape: of the whole matrix.
    """
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    if form.name == PLAIN:
        return part("weight", rows).float()
    height, columns = rows.stop - rows.start, shape[1]
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


def _stored(form: WeightFormat, stored: Container[str], part: Part, rows: slice) -> dict[str, Any]:
    """Return compressed-tensors' tensors of these rows, scales in float32 where they may be."""
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
    """Return the rows of a tensor that has one for so many of a matrix."""
    return slice(rows.start // number, -(-rows.stop // number))


def _from_awq(
    form: WeightFormat, stored: Container[str], part: Part, rows: slice
) -> dict[str, Any]:
    """Return these rows of AutoAWQ's layout, a transposed matrix with eight rows in a word."""
    from compressed_tensors.entrypoints.convert import AutoAWQConverter

    words, every = slice(rows.start // 8, rows.stop // 8), slice(None)
    state = {
        "x.qweight": part("qweight", every, words),
        "x.scales": part("scales", every, rows).float(),
    }
    if "qzeros" in stored:
        state["x.qzeros"] = part("qzeros", every, words)
    converter = AutoAWQConverter(group_size=form.group, zero_point=not form.symmetric, ignore=())
    return {name.removeprefix("x."): each for name, each in converter.process(state).items()}
