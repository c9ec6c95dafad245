"""Which kind of module a tensor belongs to, by its name in the checkpoint.

Standard library only: the quantizers' environments ask too.
"""

from __future__ import annotations

import re
from typing import Literal, get_args

ModuleKind = Literal[
    "embeddings",
    "attention",
    "mlp",
    "experts",
    "routers",
    "norms",
    "lm_head",
    "vision",
    "mtp",
    "other",
]
MODULE_KINDS: tuple[ModuleKind, ...] = get_args(ModuleKind)

VISION = ("vision", "visual", "image", "audio", "multi_modal_projector", "mm_projector")
HEADS = ("lm_head", "embed_out")
EMBEDDINGS = ("wte", "wpe")
# A router scores experts; a dense layer's own gate is called gate_proj or gate_up_proj.
ROUTERS = ("gate", "router", "shared_expert_gate")
EXPERTS = ("experts",)
SHARED_EXPERTS = ("shared_expert", "shared_experts")
DENSE = ("mlp", "feed_forward", "ffn", "block_sparse_moe", "moe", *SHARED_EXPERTS)

# Keys by which configs say how many experts a layer has.
EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
# What makes an engine leave stacked experts alone: it looks for an expert's matrices
# by the names they would have, such as `mlp.experts.0.up_proj`, whatever the stack is called.
STACKED_EXPERTS = r"re:(.*\.)?experts(\..*)?$"

_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")


def module_kind(name: str, dimensions: int, layers: int) -> ModuleKind:
    """The kind of module that the tensor `name` is a part of.

    Args:
        layers: num_hidden_layers; DeepSeek keeps its head for multi-token prediction (MTP) in
            layers after the last.
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
    """Whether a tensor of so many dimensions holds the matrices of all experts of a layer."""
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
    return "other"
