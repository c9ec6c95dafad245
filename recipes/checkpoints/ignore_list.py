"""Modules that must stay in 16 bits, by architecture."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from recipes.checkpoints.model_shape import LAYERS, text_level
from recipes.checkpoints.module_kind import (
    ROUTERS,
    STACKED_EXPERTS,
    VISION,
    ModuleKind,
    is_expert_stack,
    is_quantizable,
    is_tied,
    module_kind,
)
from recipes.checkpoints.safetensors_header import TensorEntry
from recipes.module_lists import is_listed, to_expression

# Routers depend on small differences. Vision towers, projectors and multi-token prediction (MTP)
# heads are not calibrated. No recipe quantizes embeddings or fused experts.
LEFT_ALONE: tuple[ModuleKind, ...] = ("routers", "vision", "mtp")
OUTPUT_HEAD = "lm_head"
# Gated delta nets: an error stays in the state for all later tokens. Their makers release FP8,
# with the small projections of decay and write strength in 16 bits.
LINEAR_ATTENTION = "linear_attn"
ITS_GATES = r"linear_attn\.in_proj_(ba|a|b)"


def ignore_list(
    tensors: Mapping[str, TensorEntry],
    config: Mapping[str, Any],
    recipe_ignore: list[str],
    *,
    fp8: bool = False,
) -> list[str]:
    """Return the recipe's ignore list, extended for this architecture.

    It has names and `re:` expressions for llm-compressor, vLLM and module_lists.py.
    """
    ignored = list(dict.fromkeys(_to_supported_form(word) for word in recipe_ignore))
    layers = decoder_layers(config)
    kinds = {
        _module(name): module_kind(name, len(tensor.shape), layers)
        for name, tensor in tensors.items()
        if is_quantizable(name, tensor, [])
    }
    if is_tied(config):
        ignored += _unlisted([OUTPUT_HEAD], ignored)
    if is_listed(OUTPUT_HEAD, ignored):
        heads = [module for module, kind in kinds.items() if kind == "lm_head"]
        ignored += _unlisted(heads, ignored)
    for left_alone in LEFT_ALONE:
        modules = [module for module, kind in kinds.items() if kind == left_alone]
        if unlisted := _unlisted(modules, ignored):
            ignored += _expressions(left_alone, unlisted, layers)
    linear = _match_part(ITS_GATES if fp8 else LINEAR_ATTENTION)
    if linear not in ignored and any(is_listed(module, [linear]) for module in kinds):
        ignored.append(linear)
    has_stacks = any(is_expert_stack(name, len(tensor.shape)) for name, tensor in tensors.items())
    if STACKED_EXPERTS not in ignored and has_stacks:
        ignored.append(STACKED_EXPERTS)
    return ignored


def _unlisted(modules: list[str], ignored: list[str]) -> list[str]:
    return [module for module in modules if not is_listed(module, ignored)]


def _module(tensor: str) -> str:
    return tensor.removesuffix(".weight")


def _to_supported_form(word: str) -> str:
    expression = to_expression(word)
    return word if expression is None else f"re:{expression}"


def decoder_layers(config: Mapping[str, Any]) -> int:
    """Return the decoder's layers; a huge number if unknown."""
    level = text_level(dict(config))
    known = [level[key] for key in LAYERS if type(level.get(key)) is int]
    return int(known[0]) if known else 10**6


def _expressions(kind: ModuleKind, modules: list[str], layers: int) -> list[str]:
    """Return expressions for these modules with any prefix.

    A library's prefix can differ from the checkpoint's.
    """
    if kind == "routers":
        return [_match_part("|".join(ROUTERS))]
    if kind == "vision":
        return [_match_part("|".join(f"{word}[^.]*" for word in VISION))]
    numbers = {
        int(match[1])
        for module in modules
        if (match := re.search(r"(?:^|\.)layers\.(\d+)\.", module)) and int(match[1]) >= layers
    }
    after = [_match_part(rf"layers\.{number}") for number in sorted(numbers)]
    named = [_match_part("mtp")] if any("mtp" in module.split(".") for module in modules) else []
    return [*named, *after]


def _match_part(part: str) -> str:
    return rf"re:(.*\.)?({part})(\..*)?$"
