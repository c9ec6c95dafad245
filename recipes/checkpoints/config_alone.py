"""A checkpoint of which only config.json is here."""

from __future__ import annotations

import math
from pathlib import Path

from recipes.checkpoints.checkpoint import Checkpoint
from recipes.checkpoints.folder import CONFIG, check_folder, read_config
from recipes.checkpoints.model_shape import (
    EXPERT_INNER,
    INNER,
    model_shape,
    read_positive_int,
    text_level,
)
from recipes.checkpoints.module_kind import is_tied
from recipes.checkpoints.safetensors_header import TensorEntry
from recipes.checkpoints.small_files import SmallFiles

Shapes = dict[str, tuple[int, ...]]


def read_config_alone(folder: Path, name: str) -> Checkpoint:
    """Read config.json and make up the tensors.

    CheckpointError: it is missing or damaged, or lacks a number.
    """
    check_folder(folder)
    config = read_config(folder, SmallFiles.in_folder(folder))
    where = str(folder / CONFIG)
    level = text_level(config)
    shape = model_shape(config, where)
    hidden = shape.hidden

    def number(*names: str, default: int = 0) -> int:
        return read_positive_int(level, names, where) or default

    dense = number(*INNER, default=4 * hidden)
    inner = number(*EXPERT_INNER, default=dense)  # of one expert
    firsts = level.get("first_k_dense_replace", 0)
    shapes: Shapes = {
        "model.embed_tokens.weight": (shape.vocabulary, hidden),
        "model.norm.weight": (hidden,),
    }
    if not is_tied(config):
        shapes["lm_head.weight"] = (shape.vocabulary, hidden)
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}"
        shapes |= {f"{prefix}.{norm}_norm.weight": (hidden,) for norm in ("input", "post")}
        wide, narrow = (n * shape.head_width for n in (shape.heads, shape.key_value_heads))
        attention = {"q_proj": (wide, hidden), "k_proj": (narrow, hidden)}
        attention |= {"v_proj": (narrow, hidden), "o_proj": (hidden, wide)}
        if rank := number("kv_lora_rank"):
            rotary = number("qk_rope_head_dim")
            straight = number("qk_nope_head_dim")
            values = number("v_head_dim", default=straight)
            queries = number("q_lora_rank")
            attention = {
                "kv_a_proj_with_mqa": (rank + rotary, hidden),
                "kv_b_proj": (shape.heads * (straight + values), rank),
                "o_proj": (hidden, shape.heads * values),
                "q_b_proj": (shape.heads * (straight + rotary), queries or hidden),
            }
            if queries:
                attention["q_a_proj"] = (queries, hidden)
        shapes |= {f"{prefix}.self_attn.{k}.weight": v for k, v in attention.items()}
        if not shape.experts or (type(firsts) is int and layer < firsts):
            shapes |= _gated(f"{prefix}.mlp", hidden, dense)
            continue
        shapes[f"{prefix}.mlp.gate.weight"] = (shape.experts, hidden)
        if shared := number("n_shared_experts"):
            shapes |= _gated(f"{prefix}.mlp.shared_experts", hidden, shared * inner)
        for expert in range(shape.experts):
            shapes |= _gated(f"{prefix}.mlp.experts.{expert}", hidden, inner)
    tensors = {k: TensorEntry("BF16", v, 0, 2 * math.prod(v)) for k, v in shapes.items()}
    size = sum(tensor.size for tensor in tensors.values())
    return Checkpoint(name, where, config, tensors, size)


def _gated(prefix: str, hidden: int, inner: int) -> Shapes:
    return {
        f"{prefix}.gate_proj.weight": (inner, hidden),
        f"{prefix}.up_proj.weight": (inner, hidden),
        f"{prefix}.down_proj.weight": (hidden, inner),
    }
