"""A small checkpoint with random weights, and its variants: really quantized, in every format."""

from __future__ import annotations

import json
import math
import struct
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np
from narrow_numbers import (
    FP8_VALUES,
    Stored,
    bf16,
    floating,
    fp4_pairs,
    fp8,
    from_bf16,
    from_fp8,
    pack_awq,
    widened,
    words,
)
from small_checkpoint import checkpoint_files

from recipes.checkpoints.safetensors_header import read_header

Tensors = dict[str, Stored]

HIDDEN, WIDE, VOCABULARY, LAYERS = 128, 256, 32, 3
GROUP = 64
SHAPES = {
    "self_attn.q_proj": (HIDDEN, HIDDEN),
    "self_attn.k_proj": (HIDDEN // 2, HIDDEN),
    "mlp.up_proj": (WIDE, HIDDEN),
    "mlp.down_proj": (HIDDEN, WIDE),
}
BIASES = {"input_layernorm": HIDDEN, "self_attn.q_proj": HIDDEN, "mlp.up_proj": WIDE}
LINEAR = tuple(f"model.layers.{n}.{name}" for n in range(LAYERS) for name in SHAPES)
WEIGHTS = "model.safetensors"

CALIBRATION = {"dataset": "builtin"}
IN_GROUPS = {"group_size": GROUP, "smaller_group_sizes": [], "calibration": CALIBRATION}
RECIPES: dict[str, dict[str, Any]] = {
    "fp8-dynamic": {"kind": "preset", "scheme": "FP8_DYNAMIC"},
    "fp8-block": {"kind": "preset", "scheme": "FP8_BLOCK"},
    "fp8-static": {
        "kind": "preset",
        "scheme": "FP8",
        "kv_cache_scales": "tensor",
        "calibration": CALIBRATION,
    },
    "nvfp4": {"kind": "preset", "scheme": "NVFP4", "calibration": CALIBRATION},
    "mxfp4": {"kind": "preset", "scheme": "MXFP4"},
    "mixed": {
        "kind": "preset",
        "scheme": "NVFP4",
        "other_schemes": {"FP8_DYNAMIC": ["*.self_attn.*"]},
        "calibration": CALIBRATION,
    },
    "awq": {"kind": "awq", **IN_GROUPS},
    "awq-sym": {"kind": "awq", "symmetric": True, **IN_GROUPS},
    "awq-8": {"kind": "awq", "bits": 8, **IN_GROUPS},
    "gptq": {"kind": "gptq", "scheme": "W4A16", **IN_GROUPS},
    "int8": {
        "kind": "gptq",
        "scheme": "W8A8",
        "smoothing_strength": 0.8,
        "calibration": CALIBRATION,
    },
    "autoawq": {"kind": "autoawq", **IN_GROUPS},
}
# Recipes that rescale columns, so that only a model that runs can be compared.
RESCALED = ("awq", "awq-sym", "awq-8", "int8", "autoawq")


def recipe(kind: str, ignore: tuple[str, ...] = ("lm_head",)) -> dict[str, Any]:
    """The quantization, as a recipe's YAML would have it."""
    return RECIPES[kind] | {"ignore": list(ignore)}


def source_tensors(*, tied: bool = True) -> Tensors:
    """Random weights in bf16, the same ones each time; the caller's own to change."""
    return _copy(_source_tensors(tied))


def variant_tensors(kind: str, *, tied: bool = True, scale: str = "BF16") -> Tensors:
    """The same, quantized; the columns are not rescaled, not even by AWQ's kinds."""
    return _copy(_variant_tensors(kind, tied, scale))


def _copy(tensors: Tensors) -> Tensors:
    return {name: replace(each, array=each.array.copy()) for name, each in tensors.items()}


@cache
def _source_tensors(tied: bool) -> Tensors:
    random = np.random.default_rng(8)
    tensors = {"model.embed_tokens.weight": bf16(random.normal(size=(VOCABULARY, HIDDEN)))}
    for layer in range(LAYERS):
        block = f"model.layers.{layer}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{block}.{norm}.weight"] = bf16(random.uniform(0.5, 2, HIDDEN))
        for name, shape in SHAPES.items():
            tensors[f"{block}.{name}.weight"] = bf16(random.normal(size=shape) * 0.02)
        for name, length in BIASES.items():
            tensors[f"{block}.{name}.bias"] = bf16(random.normal(size=length))
        tensors[f"{block}.self_attn.sinks"] = bf16(random.normal(size=2))
    tensors["model.norm.weight"] = bf16(random.uniform(0.5, 2, HIDDEN))
    if not tied:
        tensors["lm_head.weight"] = bf16(random.normal(size=(VOCABULARY, HIDDEN)))
    return tensors


@cache
def _variant_tensors(kind: str, tied: bool, scale: str) -> Tensors:
    tensors = source_tensors(tied=tied)
    plain = {name: from_bf16(tensors[f"{name}.weight"]) for name in LINEAR}
    for name in LINEAR:
        del tensors[f"{name}.weight"]
        tensors |= quantized(name, plain[name], kind, scale)
    if kind == "fp8-static":
        for layer in range(LAYERS):
            for key in ("k_scale", "v_scale"):
                tensors[f"model.layers.{layer}.self_attn.{key}"] = floating([0.03], scale)
    return tensors


def quantized(name: str, weights: Any, kind: str, scale: str) -> Tensors:
    """What stands for one layer's matrix."""
    if kind == "mixed":
        kind = "fp8-dynamic" if "self_attn" in name else "nvfp4"
    if kind.startswith("fp8"):
        parts = _fp8(weights, kind, scale)
    elif kind == "nvfp4":
        parts = _nvfp4(weights)
    elif kind == "mxfp4":
        parts = _mxfp4(weights)
    elif kind == "int8":
        steps = floating(np.abs(weights).max(axis=1, keepdims=True) / 127, scale)
        numbers = np.clip(np.round(weights / widened(steps)), -128, 127)
        parts = {"weight": Stored("I8", numbers.astype(np.int8)), "weight_scale": steps}
    elif kind == "autoawq":
        parts = _autoawq(weights)
    else:
        parts = _packed(weights, 8 if kind == "awq-8" else 4, kind in ("awq", "awq-8"), scale)
    return {f"{name}.{suffix}": tensor for suffix, tensor in parts.items()}


def _fp8(weights: Any, kind: str, scale: str) -> Tensors:
    rows, columns = weights.shape
    high, wide = {"fp8-block": (128, 128), "fp8-static": (rows, columns)}.get(kind, (1, columns))
    down, across = -(-rows // high), -(-columns // wide)
    largest = np.array(
        [
            [
                np.abs(weights[r * high : (r + 1) * high, c * wide : (c + 1) * wide]).max()
                for c in range(across)
            ]
            for r in range(down)
        ]
    )
    steps = floating(largest / FP8_VALUES[-1], scale)
    each = np.repeat(np.repeat(widened(steps), high, 0), wide, 1)[:rows, :columns]
    parts = {"weight": fp8(np.clip(weights / each, -448, 448)), "weight_scale": steps}
    if kind == "fp8-static":
        steps.array = steps.array.reshape(1)
        parts["input_scale"] = floating([0.1], scale)
    return parts


def _nvfp4(weights: Any) -> Tensors:
    grouped = weights.reshape(len(weights), -1, 16)
    divisor = np.float32(448 * 6 / np.abs(weights).max())
    scales = fp8(np.abs(grouped).max(axis=2) / 6 * divisor)
    steps = (from_fp8(scales) / divisor)[:, :, None]
    numbers = np.divide(grouped, steps, out=np.zeros_like(grouped), where=steps > 0)
    return {
        "weight_packed": fp4_pairs(np.clip(numbers, -6, 6).reshape(weights.shape)),
        "weight_scale": scales,
        "weight_global_scale": Stored("F32", np.array([divisor], np.float32)),
        "input_global_scale": Stored("F32", np.array([3.0], np.float32)),
    }


def _mxfp4(weights: Any) -> Tensors:
    grouped = weights.reshape(len(weights), -1, 32)
    largest = np.abs(grouped).max(axis=2)
    exponents = np.floor(np.log2(np.where(largest > 0, largest, 1))) - 2
    numbers = grouped / np.exp2(exponents)[:, :, None]
    return {
        "weight_packed": fp4_pairs(np.clip(numbers, -6, 6).reshape(weights.shape)),
        "weight_scale": Stored("U8", (exponents + 127).astype(np.uint8)),
    }


def _in_groups(weights: Any, bits: int, asymmetric: bool, scale: str) -> tuple[Any, Stored, Any]:
    """Unsigned numbers (rows x groups x columns of one), scales and zero points (rows x groups)."""
    grouped = weights.reshape(len(weights), -1, GROUP)
    most = 2**bits - 1
    if asymmetric:
        low, high = np.minimum(grouped.min(2), 0), np.maximum(grouped.max(2), 0)
        steps = floating((high - low) / most, scale)
        zeros = np.clip(np.round(-low / widened(steps)), 0, most)
    else:
        steps = floating(np.abs(grouped).max(2) / (most / 2), scale)
        zeros = np.full(grouped.shape[:2], 2.0 ** (bits - 1))
    numbers = np.clip(np.round(grouped / widened(steps)[..., None] + zeros[..., None]), 0, most)
    return numbers, steps, zeros


def _packed(weights: Any, bits: int, asymmetric: bool, scale: str) -> Tensors:
    numbers, steps, zeros = _in_groups(weights, bits, asymmetric, scale)
    parts = {
        "weight_packed": Stored("I32", words(numbers.reshape(weights.shape), bits)),
        "weight_scale": steps,
        "weight_shape": Stored("I64", np.array(weights.shape, np.int64)),
    }
    if asymmetric:
        parts["weight_zero_point"] = Stored("I32", words(zeros.T, bits).T)
    return parts


def _autoawq(weights: Any) -> Tensors:
    numbers, steps, zeros = _in_groups(weights, 4, True, "F16")
    return {
        "qweight": Stored("I32", pack_awq(numbers.reshape(weights.shape).T)),
        "scales": Stored("F16", steps.array.T),
        "qzeros": Stored("I32", pack_awq(zeros.T)),
    }


def quantization_config(kind: str) -> dict[str, Any]:
    """As compressed-tensors or AutoAWQ writes it, the keys that matter."""
    if kind == "mixed":
        four, eight = quantization_config("nvfp4"), quantization_config("fp8-dynamic")
        attention = eight["config_groups"]["group_0"] | {"targets": ["re:.*self_attn.*"]}
        four["config_groups"] = {"group_0": attention, "group_1": four["config_groups"]["group_0"]}
        return four | {"format": "mixed-precision"}
    if kind == "autoawq":
        return {
            "quant_method": "awq",
            "version": "gemm",
            "bits": 4,
            "group_size": GROUP,
            "zero_point": True,
        }
    name, bits, number, strategy = {
        "fp8-dynamic": ("float-quantized", 8, "float", "channel"),
        "fp8-block": ("float-quantized", 8, "float", "block"),
        "fp8-static": ("float-quantized", 8, "float", "tensor"),
        "nvfp4": ("nvfp4-pack-quantized", 4, "float", "tensor_group"),
        "mxfp4": ("mxfp4-pack-quantized", 4, "float", "group"),
        "int8": ("int-quantized", 8, "int", "channel"),
        "awq-8": ("pack-quantized", 8, "int", "group"),
    }.get(kind, ("pack-quantized", 4, "int", "group"))
    weights = {
        "num_bits": bits,
        "type": number,
        "strategy": strategy,
        "symmetric": kind not in ("awq", "awq-8"),
        "group_size": 32 if kind == "mxfp4" else {"group": GROUP, "tensor_group": 16}.get(strategy),
        "block_structure": [128, 128] if strategy == "block" else None,
    }
    dynamic = {"fp8-static": False, "nvfp4": "local"}.get(kind, True)
    group = {"format": name, "targets": ["Linear"], "weights": weights}
    return {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": group | {"input_activations": {"dynamic": dynamic}}},
        "ignore": ["lm_head"],
        "kv_cache_scheme": {"num_bits": 8, "strategy": "tensor"} if kind == "fp8-static" else None,
    }


def safetensors_of(tensors: Tensors) -> bytes:
    """A file with these tensors."""
    header: dict[str, Any] = {}
    position = 0
    for name, tensor in tensors.items():
        end = position + tensor.array.nbytes
        shape, place = list(tensor.array.shape), [position, end]
        header[name] = {"dtype": tensor.dtype, "shape": shape, "data_offsets": place}
        assert tensor.array.nbytes == math.prod(shape) * tensor.array.itemsize
        position = end
    text = json.dumps(header).encode()
    data = b"".join(np.ascontiguousarray(tensor.array).tobytes() for tensor in tensors.values())
    return struct.pack("<Q", len(text)) + text + data


def source_files(*, tied: bool = True) -> dict[str, bytes]:
    """The unquantized checkpoint."""
    return dict(_source_files(tied))


def variant_files(kind: str, *, tied: bool = True, scale: str = "BF16") -> dict[str, bytes]:
    """The quantized checkpoint."""
    return dict(_variant_files(kind, tied, scale))


@cache
def _source_files(tied: bool) -> dict[str, bytes]:
    files = checkpoint_files()
    config = json.loads(files["config.json"]) | {
        "tie_word_embeddings": tied,
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "rope_theta": 10000.0,
    }
    return files | {
        "config.json": json.dumps(config).encode(),
        WEIGHTS: safetensors_of(source_tensors(tied=tied)),
    }


@cache
def _variant_files(kind: str, tied: bool, scale: str) -> dict[str, bytes]:
    files = source_files(tied=tied)
    config = cast("dict[str, Any]", json.loads(files["config.json"]))
    config["quantization_config"] = quantization_config(kind)
    return files | {
        "config.json": json.dumps(config).encode(),
        WEIGHTS: safetensors_of(variant_tensors(kind, tied=tied, scale=scale)),
        "recipe.yaml": b"{}",
    }


def write_weights(folder: Path, tensors: Tensors) -> None:
    """Put these in the place of the folder's weights."""
    (folder / WEIGHTS).write_bytes(safetensors_of(tensors))


def overwrite(folder: Path, tensor: str, data: bytes, element: int = 0) -> None:
    """Put `data` in the place of one element of a tensor."""
    path = folder / WEIGHTS
    header = read_header(path)
    place = header.data_start + header.tensors[tensor].begin + element * len(data)
    with path.open("r+b") as file:
        file.seek(place)
        file.write(data)
