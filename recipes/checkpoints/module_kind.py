"""Kind of module of a tensor, from its name.

Standard library only, for the quantizers' environments.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from recipes.checkpoints.safetensors_header import TensorEntry
from recipes.module_lists import is_listed

WEIGHT = ".weight"
HEAD = "lm_head.weight"


def is_quantizable(name: str, tensor: TensorEntry, ignore: list[str]) -> bool:
    """Return whether the recipe quantizes this tensor."""
    return is_linear_weight(name, tensor) and not is_listed(name.removesuffix(WEIGHT), ignore)


def is_linear_weight(name: str, tensor: TensorEntry) -> bool:
    """Return whether this is a linear layer's matrix."""
    if not name.endswith(WEIGHT) or len(tensor.shape) != 2:
        return False
    module = name.removesuffix(WEIGHT)
    return "embed" not in module.rpartition(".")[2] and not module.endswith((".wte", ".wpe"))


def is_head(name: str) -> bool:
    """Return whether this is the output head."""
    return name.endswith(HEAD)


def is_tied(config: Mapping[str, Any]) -> bool:
    """Return whether the output head is the embedding.

    As in transformers, a multimodal config's top-level key comes first.
    """
    inner = config.get("text_config")
    fallback = inner.get("tie_word_embeddings") if isinstance(inner, dict) else False
    return bool(config.get("tie_word_embeddings", fallback))


ModuleKind = Literal[
    "embeddings",
    "attention",
    "mlp",
    "experts",
    "states",
    "routers",
    "norms",
    "lm_head",
    "vision",
    "mtp",
    "other",
]

VISION = ("vision", "visual", "image", "audio", "multi_modal_projector", "mm_projector")
HEADS = ("lm_head", "embed_out")
EMBEDDINGS = ("wte", "wpe")
# A router scores experts; the gate of a dense layer is gate_proj or gate_up_proj.
ROUTERS = ("gate", "router", "shared_expert_gate")
EXPERTS = ("experts",)
SHARED_EXPERTS = ("shared_expert", "shared_experts")
# State-space and convolution layers; Nemotron-H calls every layer's module `mixer`.
STATES = ("mamba", "conv", "mixer")
MIXED: dict[str, ModuleKind] = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj", "o_proj"), "attention"),
    **dict.fromkeys(("up_proj", "gate_proj", "down_proj"), "mlp"),
}
DENSE = ("mlp", "feed_forward", "ffn", "block_sparse_moe", "moe", *SHARED_EXPERTS)

EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
# Excludes fused experts: engines match the names of single experts' matrices, such as
# `mlp.experts.0.up_proj`.
STACKED_EXPERTS = r"re:(.*\.)?experts(\..*)?$"

_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")


def module_kind(name: str, dimensions: int, layers: int) -> ModuleKind:
    """Return the kind of module of a tensor.

    DeepSeek's multi-token prediction (MTP) head follows the last of `layers`.
    """
    parts = name.split(".")
    leaf = parts[-2] if len(parts) > 1 else parts[0]
    if any(part.startswith(VISION) for part in parts):
        return "vision"
    layer = _LAYER.search(name)
    if parts[0] == "mtp" or "mtp" in parts or (layer and int(layer[1]) >= layers):
        return "mtp"
    if any(part in HEADS for part in parts) or name == "output.weight":
        return "lm_head"
    if "norm" in leaf or leaf.startswith("ln_"):
        return "norms"
    if "embed" in leaf or leaf in EMBEDDINGS:
        return "embeddings"
    return _kind_inside_a_layer(parts, dimensions)


def is_expert_stack(name: str, dimensions: int) -> bool:
    """Return whether a tensor fuses a layer's experts."""
    parts = name.split(".")
    if dimensions != 3 or any(part.startswith(VISION) for part in parts):
        return False
    return _kind_inside_a_layer(parts, dimensions) == "experts"


def _kind_inside_a_layer(parts: list[str], dimensions: int) -> ModuleKind:
    if any(part in ROUTERS for part in parts):
        return "routers"
    if any(part in EXPERTS for part in parts):
        return "experts"
    if dimensions == 3 and any(part in DENSE for part in parts):
        return "experts"
    if any("attn" in part or "attention" in part for part in parts):
        return "attention"
    if any(part in DENSE for part in parts):
        return "mlp"
    if any(part in STATES for part in parts):
        return MIXED.get(parts[-2], "states")
    return "other"


BLOCK = re.compile(r"(.*?\.(?:layers|h|blocks|block)\.\d+)\.")


def block_name(name: str) -> str:
    """Return a tensor's layer, such as 'model.layers.3', or ''."""
    match = BLOCK.match(name)
    return match[1] if match else ""
