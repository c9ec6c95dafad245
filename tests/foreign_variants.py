"""Variants of the small checkpoint in the layouts of other programs, written by their formats.

The numbers come from `sound_variants`: nothing here uses the readers under test.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from narrow_numbers import Stored, bf16, fp4_pairs, fp8, from_bf16, from_fp8, words
from sound_variants import (
    GROUP,
    LINEAR,
    WEIGHTS,
    Tensors,
    _fp8,
    _in_groups,
    safetensors_of,
    source_files,
    source_tensors,
)

CONFIGS: dict[str, dict[str, Any] | None] = {
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "sym": False},
    "gptq_v2": {
        "quant_method": "gptq",
        "bits": 8,
        "group_size": GROUP,
        "sym": False,
        "checkpoint_format": "gptq_v2",
    },
    "modelopt-fp8": {"quant_method": "modelopt", "quant_algo": "FP8"},
    "modelopt-nvfp4": {"quant_method": "modelopt", "quant_algo": "NVFP4"},
    "fp8": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    "gguf": None,
}


def foreign_layer(name: str, weights: Any, kind: str) -> Tensors:
    """What stands for one layer's matrix."""
    return {f"{name}.{suffix}": part for suffix, part in _PARTS[kind](weights, kind).items()}


def _gptq(weights: Any, kind: str) -> Tensors:
    bits = 8 if kind == "gptq_v2" else 4
    numbers, steps, zeros = _in_groups(weights, bits, True, "F16")
    if kind == "gptq":  # stored minus one, so it cannot store a 0
        numbers, zeros = np.clip(numbers + (zeros < 1)[..., None], 0, 15), np.maximum(zeros, 1)
    columns = weights.shape[1]
    return {
        "qweight": Stored("I32", words(numbers.reshape(weights.shape), bits).T),
        "qzeros": Stored("I32", words(zeros.T - (kind == "gptq"), bits)),
        "scales": Stored("F16", steps.array.T),
        "g_idx": Stored("I32", (np.arange(columns) // GROUP).astype(np.int32)),
    }


def _modelopt_fp8(weights: Any, kind: str) -> Tensors:
    scale = np.float32(np.abs(weights).max() / 448)
    return {
        "weight": fp8(weights / scale),
        "weight_scale": Stored("F32", np.array(scale)),
        "input_scale": Stored("F32", np.array(np.float32(0.02))),
    }


def _modelopt_nvfp4(weights: Any, kind: str) -> Tensors:
    grouped = weights.reshape(len(weights), -1, 16)
    factor = np.float32(np.abs(weights).max() / (6 * 448))
    scales = fp8(np.abs(grouped).max(axis=2) / 6 / factor)
    numbers = grouped / (from_fp8(scales) * factor)[:, :, None]
    return {
        "weight": fp4_pairs(np.clip(numbers, -6, 6).reshape(weights.shape)),
        "weight_scale": scales,
        "weight_scale_2": Stored("F32", np.array(factor)),
        "input_scale": Stored("F32", np.array(np.float32(0.02))),
    }


def _deepseek(weights: Any, kind: str) -> Tensors:
    parts = _fp8(weights, "fp8-block", "F32")
    return {"weight": parts["weight"], "weight_scale_inv": parts["weight_scale"]}


def through_q8_0(weights: Any) -> Any:
    """To GGUF's Q8_0 and back: blocks of 32 with one float16 scale, rounded to nearest."""
    blocks = np.asarray(weights, np.float32).reshape(-1, 32)
    scale = (np.abs(blocks).max(axis=1, keepdims=True) / 127).astype(np.float16).astype(np.float32)
    numbers = np.divide(blocks, scale, out=np.zeros_like(blocks), where=scale > 0)
    return (np.clip(np.round(numbers), -128, 127) * scale).reshape(weights.shape)


def _gguf(weights: Any, kind: str) -> Tensors:
    return {"weight": bf16(through_q8_0(weights))}


_PARTS = {
    "gptq": _gptq,
    "gptq_v2": _gptq,
    "modelopt-fp8": _modelopt_fp8,
    "modelopt-nvfp4": _modelopt_nvfp4,
    "fp8": _deepseek,
    "gguf": _gguf,
}


def foreign_tensors(kind: str) -> Tensors:
    """The small checkpoint's tensors in this layout."""
    tensors = source_tensors()
    for name in LINEAR:
        tensors |= foreign_layer(name, from_bf16(tensors.pop(f"{name}.weight")), kind)
    if kind == "gguf":
        name = "model.embed_tokens.weight"
        tensors |= foreign_layer("model.embed_tokens", from_bf16(tensors.pop(name)), kind)
    return tensors


def foreign_files(kind: str, tensors: Tensors | None = None) -> dict[str, bytes]:
    """A folder that another program wrote."""
    files = source_files()
    config = json.loads(files["config.json"])
    quantization = CONFIGS[kind]
    if kind.startswith("modelopt"):
        # As ModelOpt's export does it: in a separate file.
        assert quantization is not None
        described = {
            "producer": {"name": "modelopt", "version": "0.33.0"},
            "quantization": {
                "quant_algo": quantization["quant_algo"],
                "kv_cache_quant_algo": None,
                "exclude_modules": ["lm_head"],
            },
        }
        files["hf_quant_config.json"] = json.dumps(described).encode()
    elif quantization is not None:
        config["quantization_config"] = quantization
    return files | {
        "config.json": json.dumps(config).encode(),
        WEIGHTS: safetensors_of(foreign_tensors(kind) if tensors is None else tensors),
    }
