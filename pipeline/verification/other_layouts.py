"""Dequantization of layouts that only other programs write: GPTQ, ModelOpt and bitsandbytes.

The layouts follow AutoGPTQ and GPTQModel (`qlinear`), ModelOpt's export (`hf_quant_config.json`)
and bitsandbytes (`functional.QuantState`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pipeline.core.errors import VerificationError
from pipeline.core.untrusted.json import parse_json
from pipeline.verification.number_types import FLOATING, Floats, unpack_fp4, unpack_unsigned
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
from recipes.weight_format import GPTQ_V2, WeightFormat

MAX_STATE_BYTES = 10_000


class PlainWeights:
    """Weights in a wide type, such as those of a dequantized GGUF file."""

    def __init__(self, form: WeightFormat, shape: Shape, parts: dict[str, StoredTensor]) -> None:
        self.weight = parts["weight"]

    @staticmethod
    def parts(form: WeightFormat, rows: int, columns: int) -> list[StoredPart]:
        return [StoredPart("weight", FLOATING, ((rows, columns),))]

    def rows(self, begin: int, end: int) -> Floats:
        """Implement :class:`LayerDequantizer`."""
        return self.weight.floats(begin, end)


class ModelOptNvfp4:
    """e2m1 values, an e4m3 scale for each 16 of them, and one factor for the matrix."""

    def __init__(self, form: WeightFormat, shape: Shape, parts: dict[str, StoredTensor]) -> None:
        self.packed, self.scale = parts["weight"], parts["weight_scale"]
        factor = parts["weight_scale_2"]
        self.factor = check_scale(factor, factor.floats()).reshape(())

    @staticmethod
    def parts(form: WeightFormat, rows: int, columns: int) -> list[StoredPart]:
        return [
            StoredPart("weight", ("U8",), ((rows, columns // 2),)),
            StoredPart("weight_scale", ("F8_E4M3",), (form.scale_shape(rows, columns),)),
            StoredPart("weight_scale_2", ("F32",), SCALAR),
            *([StoredPart("input_scale", ("F32",), SCALAR)] * form.static_input),
        ]

    def rows(self, begin: int, end: int) -> Floats:
        """Implement :class:`LayerDequantizer`."""
        values = unpack_fp4(self.packed.read(begin, end))
        scale = check_scale(self.scale, self.scale.floats(begin, end), zero_allowed=True)
        grouped = values.reshape(*scale.shape, -1)
        grouped *= (scale * self.factor)[:, :, None]
        return grouped.reshape(len(scale), -1)


class Gptq:
    """GPTQ's layout: a transposed matrix, consecutive inputs in a word, groups along the inputs.

    The first version stores zero points minus one. The packed matrix is loaded completely.
    """

    def __init__(self, form: WeightFormat, shape: Shape, parts: dict[str, StoredTensor]) -> None:
        rows, self.columns = shape
        self.bits = form.bits
        words = parts["qweight"].read().view("<i4").reshape(-1, rows)
        self.packed = np.ascontiguousarray(words.T)  # rows x words
        self.scale = check_scale(parts["scales"], parts["scales"].floats())  # groups x rows
        zeros = unpack_unsigned(parts["qzeros"].read(), form.bits).reshape(len(self.scale), -1)
        self.zeros = zeros[:, :rows] + (0.0 if form.name == GPTQ_V2 else 1.0)
        if form.symmetric and (self.zeros != 2 ** (form.bits - 1)).any():
            raise VerificationError(
                f"'{parts['qzeros'].name}' has zero points, and config.json has 'sym': true, "
                "by which an engine ignores them",
                where=str(parts["qzeros"].path),
            )
        self.groups = group_of_columns(parts["g_idx"], len(self.scale))

    @staticmethod
    def parts(form: WeightFormat, rows: int, columns: int) -> list[StoredPart]:
        groups = form.scale_shape(rows, columns)[1]
        words, zeros = (-(-size * form.bits // WORD_BITS) for size in (columns, rows))
        return [
            StoredPart("qweight", ("I32",), ((words, rows),)),
            StoredPart("qzeros", ("I32",), ((groups, zeros),)),
            StoredPart("scales", SCALE_TYPES, ((groups, rows),)),
            StoredPart("g_idx", ("I32", "I64"), ((columns,),)),
        ]

    def rows(self, begin: int, end: int) -> Floats:
        """Implement :class:`LayerDequantizer`."""
        words = self.packed[begin:end]
        values = unpack_unsigned(words.view(np.uint8).reshape(-1), self.bits)
        values = values.reshape(len(words), -1)[:, : self.columns]
        offset, scale = (each[:, begin:end].T[:, self.groups] for each in (self.zeros, self.scale))
        return np.asarray((values - offset) * scale)


class BitsAndBytes4:
    """NF4 or FP4 of bitsandbytes: codes in blocks of the flat matrix, which share a maximum.

    With double quantization the maxima are 8-bit codes in blocks themselves.
    """

    def __init__(self, form: WeightFormat, shape: Shape, parts: dict[str, StoredTensor]) -> None:
        self.columns, self.packed = shape[1], parts["weight"].read()
        state = _read_state(parts[f"weight.quant_state.bitsandbytes__{form.number}"], shape)
        self.code = parts["weight.quant_map"].floats()
        if shape[0] * shape[1] % 2:
            raise VerificationError(f"two weights of {shape[0]} x {shape[1]} do not fill each byte")
        block, nested = state["blocksize"], state["nested_blocksize"]
        _check_count(parts["weight.absmax"], shape[0] * shape[1], block)
        self.maxima = parts["weight.absmax"].floats()
        if form.strategy == "nested":
            levels = parts["weight.nested_quant_map"].floats()
            _check_count(parts["weight.nested_absmax"], len(self.maxima), nested)
            above = parts["weight.nested_absmax"].floats()
            each = np.repeat(above, nested)[: len(self.maxima)]
            self.maxima = levels[self.maxima.astype(np.intp)] * each + state["nested_offset"]
        self.block = block

    @staticmethod
    def parts(form: WeightFormat, rows: int, columns: int) -> list[StoredPart]:
        nested = form.strategy == "nested"
        parts = [
            StoredPart("weight", ("U8",), ((rows * columns // 2, 1), (1, rows * columns // 2))),
            StoredPart("weight.absmax", ("U8",) if nested else ("F32",), ()),
            StoredPart("weight.quant_map", ("F32",), ((16,),)),
            StoredPart(f"weight.quant_state.bitsandbytes__{form.number}", ("U8",), ()),
        ]
        if nested:
            parts.append(StoredPart("weight.nested_absmax", ("F32",), ()))
            parts.append(StoredPart("weight.nested_quant_map", ("F32",), ((256,),)))
        return parts

    def rows(self, begin: int, end: int) -> Floats:
        """Implement :class:`LayerDequantizer`."""
        first, last = begin * self.columns, end * self.columns
        raw = self.packed[first // 2 : last // 2]
        codes = np.stack([raw >> 4, raw & 15], axis=1).reshape(-1)  # the upper half is the first
        scale = self.maxima[np.arange(first, first + len(codes)) // self.block]
        return np.asarray(self.code[codes] * scale, np.float32).reshape(-1, self.columns)


def _read_state(tensor: StoredTensor, shape: Shape) -> dict[str, Any]:
    """Return bitsandbytes' JSON of a layer; raises VerificationError if it describes another."""
    try:
        if tensor.size > MAX_STATE_BYTES:
            raise ValueError(f"{tensor.size} bytes")
        state: dict[str, Any] = {"nested_blocksize": 1, **parse_json(tensor.read().tobytes())}
        numbers = [state["blocksize"], state["nested_blocksize"]]
        if not all(type(n) is int and 0 < n <= 2**20 for n in numbers):
            raise ValueError(f"blocks of {numbers}")
        if list(state["shape"]) != list(shape):
            raise ValueError(f"shape {state['shape']}")
        state["nested_offset"] = float(state.get("nested_offset", 0.0))
    except (ValueError, TypeError, LookupError, OverflowError) as error:
        raise VerificationError(
            f"'{tensor.name}' does not describe this layer ({error})", where=str(tensor.path)
        ) from error
    return state


def _check_count(maxima: StoredTensor, values: int, block: int) -> None:
    if maxima.shape != (-(-values // block),):
        raise VerificationError(
            f"'{maxima.name}' has shape {maxima.shape} for {values} values in blocks of {block}",
            where=str(maxima.path),
        )


class BitsAndBytes8:
    """INT8 of bitsandbytes: each row's maximum is 127."""

    def __init__(self, form: WeightFormat, shape: Shape, parts: dict[str, StoredTensor]) -> None:
        self.weight, self.maxima = parts["weight"], parts["SCB"]

    @staticmethod
    def parts(form: WeightFormat, rows: int, columns: int) -> list[StoredPart]:
        return [
            StoredPart("weight", ("I8",), ((rows, columns),)),
            StoredPart("SCB", ("F32",), ((rows,),)),
            StoredPart("weight_format", ("U8",), ()),
        ]

    def rows(self, begin: int, end: int) -> Floats:
        """Implement :class:`LayerDequantizer`."""
        maxima = check_scale(self.maxima, self.maxima.floats(begin, end), zero_allowed=True)
        return np.asarray(self.weight.floats(begin, end) * (maxima / 127)[:, None])
