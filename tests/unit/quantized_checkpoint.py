"""Writes a small checkpoint and its FP8 and AWQ variants, as llm-compressor lays them out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from small_checkpoint import checkpoint_files, safetensors

from pipeline.checkpoint import Checkpoint, inspect_folder
from pipeline.digest import FileDigests
from pipeline.safetensors_header import read_header

Layout = dict[str, tuple[str, tuple[int, ...]]]

SIZE = 64
GROUP = 32
LINEAR = tuple(
    f"model.layers.{layer}.{name}"
    for layer in (0, 1)
    for name in ("self_attn.q_proj", "mlp.down_proj")
)
PLAIN: Layout = {
    "model.embed_tokens.weight": ("BF16", (32, SIZE)),
    "model.layers.0.input_layernorm.weight": ("BF16", (SIZE,)),
    "model.norm.weight": ("BF16", (SIZE,)),
}
WEIGHTS = "model.safetensors"


def source_layout(*, tied: bool = True) -> Layout:
    """Types and shapes of the unquantized tensors."""
    layers: Layout = {f"{name}.weight": ("BF16", (SIZE, SIZE)) for name in LINEAR}
    return PLAIN | layers | ({} if tied else {"lm_head.weight": ("BF16", (32, SIZE))})


def quantized_layout(kind: str, *, tied: bool = True, scale: str = "BF16") -> Layout:
    """Types and shapes of the variant's tensors; `kind` is a recipe's: preset (FP8) or awq."""
    layout = PLAIN | ({} if tied else {"lm_head.weight": ("BF16", (32, SIZE))})
    for name in LINEAR:
        layout |= quantized_layer(name, kind, scale)
    return layout


def quantized_layer(name: str, kind: str, scale: str) -> Layout:
    """What stands for one layer's matrix."""
    if kind == "preset":
        return {
            f"{name}.weight": ("F8_E4M3", (SIZE, SIZE)),
            f"{name}.weight_scale": (scale, (SIZE, 1)),
        }
    groups = SIZE // GROUP
    return {
        f"{name}.weight_packed": ("I32", (SIZE, SIZE // 8)),
        f"{name}.weight_scale": (scale, (SIZE, groups)),
        f"{name}.weight_shape": ("I64", (2,)),
        f"{name}.weight_zero_point": ("I32", (SIZE // 8, groups)),
    }


def quantization_config(kind: str) -> dict[str, Any]:
    """As compressed-tensors writes it, the keys that matter."""
    weights = {"num_bits": 8 if kind == "preset" else 4, "symmetric": kind == "preset"}
    return {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        "ignore": ["lm_head"],
    }


def source_files(*, tied: bool = True) -> dict[str, bytes]:
    """The unquantized checkpoint."""
    files = checkpoint_files()
    config = json.loads(files["config.json"]) | {"tie_word_embeddings": tied}
    return files | {
        "config.json": json.dumps(config).encode(),
        WEIGHTS: safetensors(source_layout(tied=tied), format="pt"),
    }


def variant_files(kind: str, *, tied: bool = True, scale: str = "BF16") -> dict[str, bytes]:
    """The quantized checkpoint; every byte of data is 7, which makes small positive scales."""
    files = source_files(tied=tied)
    config = json.loads(files["config.json"]) | {"quantization_config": quantization_config(kind)}
    return files | {
        "config.json": json.dumps(config).encode(),
        WEIGHTS: safetensors(quantized_layout(kind, tied=tied, scale=scale), format="pt"),
        "recipe.yaml": b"{}",
    }


def inspected(folder: Path) -> Checkpoint:
    """The checkpoint in `folder`, as a run would find it."""
    digests = FileDigests(folder.with_name("digests.json"))
    return inspect_folder(folder, ref="it", kind="folder", revision=None, digests=digests)


def overwrite(folder: Path, tensor: str, data: bytes, element: int = 0) -> None:
    """Put `data` in the place of one element of a tensor."""
    path = folder / WEIGHTS
    header = read_header(path)
    place = header.data_start + header.tensors[tensor].begin + element * len(data)
    with path.open("r+b") as file:
        file.seek(place)
        file.write(data)
