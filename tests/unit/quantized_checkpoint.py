"""Writes a small checkpoint whose headers count, and what its variants' config says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from small_checkpoint import checkpoint_files, safetensors

from prepare.digest import FileDigests
from recipes.checkpoints.checkpoint import Checkpoint, inspect_folder

Layout = dict[str, tuple[str, tuple[int, ...]]]

SIZE = 64
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


def inspected(folder: Path) -> Checkpoint:
    """The checkpoint in `folder`, as a run would find it."""
    digests = FileDigests(folder.with_name("digests.json"))
    return inspect_folder(folder, digests, ref="it")
