"""Shape of a model from config.json."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from prepare.errors import CheckpointError
from recipes.checkpoints.folder import CONTEXT_KEYS, MAX_NAME_CHARACTERS
from recipes.checkpoints.module_kind import EXPERT_COUNTS

# The most common key first, then those of older models (GPT-2, MPT, DBRX, Falcon).
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
HIDDEN = ("hidden_size", "n_embd", "d_model")
HEADS = ("num_attention_heads", "n_head", "n_heads")
KEY_VALUE_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv")
INNER = ("intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim")
EXPERT_INNER = ("moe_intermediate_size", "expert_ffn_hidden_size")
EXPERTS_PER_TOKEN = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "top_k_experts")

# Values of transformers 5.17's classes that published configs omit: those of Gemma 3 4B and 27B.
DEFAULTS: dict[str, dict[str, Any]] = {
    "gemma3_text": {
        "head_dim": 256,
        "max_position_embeddings": 131_072,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "sliding_window": 4096,
        "vocab_size": 262_208,
    }
}

# Lists have one entry for each layer, and memory is computed from the other values.
MAX_LAYERS = 10_000
MAX_VALUE = 10**12


@dataclass(frozen=True)
class ModelShape:
    """Values that memory depends on."""

    architecture: str  # first one in config.json
    model_type: str
    layers: int  # of the decoder
    hidden: int  # width of the residual stream
    heads: int  # of attention
    key_value_heads: int  # fewer than `heads` in grouped-query attention
    head_width: int  # elements of one head's key, or value
    # MLP width for one token; with experts, the total width of those it is routed to.
    inner: int
    vocabulary: int  # in tokens
    experts: int  # in a layer; 0 for a dense model
    context: int  # tokens that the model was trained for


def text_level(config: dict[str, Any]) -> dict[str, Any]:
    """Return the language model's settings, with defaults."""
    inner = config.get("text_config")
    level = {**config, **inner} if isinstance(inner, dict) else config
    return {**DEFAULTS.get(str(level.get("model_type")), {}), **level}


def model_shape(config: dict[str, Any], where: str) -> ModelShape:
    """Return the shape; CheckpointError if a key is missing or invalid."""
    level = text_level(config)

    def number(keys: tuple[str, ...], default: int | None = None) -> int:
        value = read_positive_int(level, keys, where) or default
        if value is None:
            raise CheckpointError(
                f"config.json lacks {keys[0]}, which is required to compute memory",
                where=f"{where}, key {keys[0]}",
                hint="add it, or save the checkpoint again with transformers' save_pretrained()",
            )
        return value

    hidden = number(HIDDEN)
    heads = number(HEADS)
    experts = number(EXPERT_COUNTS, 0)
    dense = number(INNER, 4 * hidden)
    routed = number(EXPERTS_PER_TOKEN, 1) * number(EXPERT_INNER, dense) if experts else 0
    # Falcon 7B, StarCoder
    is_multi_query = level.get("multi_query") is True and not level.get("new_decoder_architecture")
    architectures = config.get("architectures")
    first = architectures[0] if isinstance(architectures, list) and architectures else "unknown"
    return ModelShape(
        architecture=str(first)[:MAX_NAME_CHARACTERS],
        model_type=str(level.get("model_type", "unknown"))[:MAX_NAME_CHARACTERS],
        layers=number(LAYERS),
        hidden=hidden,
        heads=heads,
        key_value_heads=1 if is_multi_query else number(KEY_VALUE_HEADS, heads),
        head_width=number(("head_dim",), max(1, hidden // heads)),
        inner=max(dense, routed),
        vocabulary=number(("vocab_size",)),
        experts=experts,
        context=number(CONTEXT_KEYS),
    )


def read_positive_int(level: dict[str, Any], keys: tuple[str, ...], where: str) -> int | None:
    """Return the first present key's value, or None.

    CheckpointError: it is no integer in range.
    """
    for key in keys:
        value = level.get(key)
        if value is None:
            continue
        # One value per layer (OpenELM): the largest, so that memory is not underestimated.
        if isinstance(value, list) and value and all(type(item) is int for item in value):
            value = max(value)
        maximum = MAX_LAYERS if key in LAYERS else MAX_VALUE
        if type(value) is not int or not 1 <= value <= maximum:
            raise CheckpointError(
                f"config.json has {key}: {str(value)[:40]!r}, which is not an integer from 1 "
                f"to {maximum:,}",
                where=f"{where}, key {key}",
                hint="download config.json again",
            )
        return value
    return None
