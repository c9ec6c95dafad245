"""Rows of one layer's weights, dequantized by compressed-tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.verification.tensor_files import StoredTensor
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


@dataclass(frozen=True)
class Parts:
    """The tensors stored for a layer, by suffix, and how to read a part of one."""

    stored: Mapping[str, StoredTensor]
    read: Callable[..., Any]

    def __getitem__(self, suffix: str) -> StoredTensor:
        return self.stored[suffix]

    def part(self, suffix: str, *where: slice) -> Any:
        """Return a tensor, or these rows (and columns) of it."""
        return self.read(self.stored[suffix], *where)


def dequantize(form: WeightFormat, parts: Parts, rows: slice, shape: tuple[int, ...]) -> Any:
    """Return rows x columns in float32.

    Args:
        rows: a multiple of 128 to begin with; whole blocks, or rows of a single block.
        shape: of the whole matrix.
    """
    import torch
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    if form.name == PLAIN:
        return parts.part("weight", rows).float()
    height, columns = rows.stop - rows.start, shape[1]
    state = _stored(form, parts, rows)
    if "weight_packed" in state and form.number == "int":
        state["weight_shape"] = torch.tensor([height, columns])
    block = None
    if form.block:
        # A part of one block counts as a whole block.
        block = [min(form.block[0], height), min(form.block[1], columns)]
    arguments = QuantizationArgs(
        num_bits=form.bits,
        type=form.number,
        strategy=form.strategy,
        group_size=form.group,
        block_structure=block,
        symmetric=form.symmetric,
    )
    scheme = QuantizationScheme(targets=["Linear"], weights=arguments)
    name = FORMATS.get(form.name, form.name)
    compressor = BaseCompressor.get_value_from_registry(name)
    if block:
        return _in_blocks(compressor, state, scheme, block)
    return compressor.decompress(state, scheme)["weight"].float()


def _stored(form: WeightFormat, parts: Parts, rows: slice) -> dict[str, Any]:
    """Return compressed-tensors' tensors of these rows, scales in float32 where they may be."""
    if form.name == AWQ_GEMM:
        return _from_awq(form, parts, rows)
    packed = "weight_packed" in parts.stored
    weight = parts.part("weight_packed" if packed else "weight", rows)
    suffix = "weight_scale_inv" if "weight_scale_inv" in parts.stored else "weight_scale"
    if form.strategy == "tensor":
        scale = parts.part(suffix).reshape(1)
    elif form.block:
        high = form.block[0]
        scale = parts.part(suffix, slice(rows.start // high, -(-rows.stop // high)))
    else:
        scale = parts.part(suffix, rows)
    if form.bits == 8 or form.number == "int":
        scale = scale.float()
    if form.name == MODELOPT_NVFP4:
        factor = 1 / parts.part("weight_scale_2").reshape(1)
        return {"weight_packed": weight, "weight_scale": scale, "weight_global_scale": factor}
    state = {"weight_packed" if packed else "weight": weight, "weight_scale": scale}
    if "weight_zero_point" in parts.stored:
        in_word = WORD_BITS // form.bits
        words = slice(rows.start // in_word, -(-rows.stop // in_word))
        state["weight_zero_point"] = parts.part("weight_zero_point", words)
    if "weight_global_scale" in parts.stored:
        state["weight_global_scale"] = parts.part("weight_global_scale").reshape(1)
    return state


def _from_awq(form: WeightFormat, parts: Parts, rows: slice) -> dict[str, Any]:
    """Return these rows of AutoAWQ's layout, a transposed matrix with eight rows in a word."""
    from compressed_tensors.entrypoints.convert import AutoAWQConverter

    words, every = slice(rows.start // 8, rows.stop // 8), slice(None)
    stored = {
        "x.qweight": parts.part("qweight", every, words),
        "x.scales": parts.part("scales", every, rows).float(),
    }
    if "qzeros" in parts.stored:
        stored["x.qzeros"] = parts.part("qzeros", every, words)
    converter = AutoAWQConverter(group_size=form.group, zero_point=not form.symmetric, ignore=())
    return {name.removeprefix("x."): each for name, each in converter.process(stored).items()}


def _in_blocks(compressor: Any, state: dict[str, Any], scheme: Any, block: list[int]) -> Any:
    """Return a matrix in blocks; the library takes whole ones only, so the last are filled."""
    from torch.nn.functional import pad

    rows, columns = state["weight"].shape
    right, below = -columns % block[1], -rows % block[0]
    filled = pad(state["weight"].float(), (0, right, 0, below))
    whole = compressor.decompress({**state, "weight": filled}, scheme)["weight"]
    return whole[:rows, :columns].float()
