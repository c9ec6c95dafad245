"""Which source tensors a recipe quantizes; without torch, since stages and workers ask it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.checkpoint.ignored_modules import is_ignored
from pipeline.checkpoint.safetensors_header import TensorEntry

WEIGHT = ".weight"
HEAD = "lm_head.weight"


def is_quantizable(name: str, tensor: TensorEntry, ignore: list[str]) -> bool:
    """Whether the recipe quantizes this source tensor: a linear layer's matrix, not ignored."""
    return is_linear_weight(name, tensor) and not is_ignored(name.removesuffix(WEIGHT), ignore)


def is_linear_weight(name: str, tensor: TensorEntry) -> bool:
    """Whether it is a linear layer's matrix, as far as name and shape tell: no embedding."""
    if not name.endswith(WEIGHT) or len(tensor.shape) != 2:
        return False
    module = name.removesuffix(WEIGHT)
    return "embed" not in module.rpartition(".")[2] and not module.endswith((".wte", ".wpe"))


def is_head(name: str) -> bool:
    """Whether it is the output head's matrix, whatever the checkpoint's prefix before its name."""
    return name.endswith(HEAD)


def is_tied(config: Mapping[str, Any]) -> bool:
    """Whether the output head is the embedding; of a multimodal config its own word goes first.

    As transformers reads it, which takes the inner model's word where there is no other.
    """
    inner = config.get("text_config")
    fallback = inner.get("tie_word_embeddings") if isinstance(inner, dict) else False
    return bool(config.get("tie_word_embeddings", fallback))
