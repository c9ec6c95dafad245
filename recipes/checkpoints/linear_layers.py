"""Selection of quantizable tensors, without torch, since stages and workers import it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recipes.checkpoints.safetensors_header import TensorEntry
from recipes.ignored_modules import is_ignored

WEIGHT = ".weight"
HEAD = "lm_head.weight"


def is_quantizable(name: str, tensor: TensorEntry, ignore: list[str]) -> bool:
    """Return whether the recipe quantizes this tensor: a linear layer, not ignored."""
    return is_linear_weight(name, tensor) and not is_ignored(name.removesuffix(WEIGHT), ignore)


def is_linear_weight(name: str, tensor: TensorEntry) -> bool:
    """Return whether name and shape are those of a linear layer's matrix."""
    if not name.endswith(WEIGHT) or len(tensor.shape) != 2:
        return False
    module = name.removesuffix(WEIGHT)
    return "embed" not in module.rpartition(".")[2] and not module.endswith((".wte", ".wpe"))


def is_head(name: str) -> bool:
    """Return whether the name is the output head's, with any prefix."""
    return name.endswith(HEAD)


def is_tied(config: Mapping[str, Any]) -> bool:
    """Return whether the output head is the embedding.

    As in transformers, a multimodal config's top-level key precedes the inner one.
    """
    inner = config.get("text_config")
    fallback = inner.get("tie_word_embeddings") if isinstance(inner, dict) else False
    return bool(config.get("tie_word_embeddings", fallback))
