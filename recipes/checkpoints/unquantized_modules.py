"""Modules that must stay in 16 bits, by architecture."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from recipes.checkpoints.model_shape import LAYERS, text_level
from recipes.checkpoints.module_kind import (
    ROUTERS,
    STACKED_EXPERTS,
    VISION,
    ModuleKind,
    block_name,
    is_expert_stack,
    is_quantizable,
    is_tied,
    module_kind,
)
from recipes.checkpoints.safetensors_header import TensorEntry
from recipes.ignored_modules import is_ignored, to_expression

# They read the same activations.
SIBLINGS = (
    ("q_proj", "k_proj", "v_proj"),
    ("gate_proj", "up_proj"),
    ("w1", "w3"),
    ("q_a_proj", "kv_a_proj_with_mqa"),
    ("in_proj_qkv", "in_proj_z"),
    ("in_proj_b", "in_proj_a"),
)
_TOGETHER = (
    *("qkv_proj", "gate_up_proj", "gate_up_proj"),
    *("fused_qkv_a_proj", "in_proj_qkvz", "in_proj_ba"),
)
_EXPERT = re.compile(r"(.*\bexperts)\.\d+\.")
_RENAMED_EXPERT = re.compile(r".*\bexperts\.\d+\.w[123]$")
_IN_LAYER = re.compile(r"(re:\(\.\*\\\.\)\?\w+\\\.)(\d+)(\\\..*)")
CURE = "give the modules of one fused set (q, k, v; gate, up; a layer's experts) one format"


def fused_name(module: str) -> str | None:
    """Return vLLM's name of the module's fused matrix, or None.

    Experts are found by their own names.
    """
    parent, _, leaf = module.rpartition(".")
    place = next((n for n, siblings in enumerate(SIBLINGS) if leaf in siblings), None)
    if place is None or _EXPERT.match(module):
        return None
    return f"{parent}.{_TOGETHER[place]}"


def is_renamed_expert(module: str) -> bool:
    """Return whether transformers loads the module under another name than the checkpoint's.

    It has Mixtral's experts as `mlp.experts.N.gate_proj`, and vLLM as they are stored: no list of
    modules fits both (llm-compressor's issue 3069).
    """
    return _RENAMED_EXPERT.match(module) is not None


def pattern_of_set(module: str) -> str:
    """Return an expression for the modules that vLLM fuses with this one, or for this one alone.

    It matches with any prefix, and names that the checkpoint lacks, too.
    """
    if expert := _EXPERT.match(module):
        return rf"re:(.*\.)?{re.escape(_below_prefix(expert[1]))}\..*$"
    place, _, leaf = _below_prefix(module).rpartition(".")
    siblings = next((siblings for siblings in SIBLINGS if leaf in siblings), (leaf,))
    names = "|".join(map(re.escape, siblings))
    above = rf"{re.escape(place)}\." if place else ""
    return rf"re:(.*\.)?{above}({names})$"


def join_layers(patterns: Iterable[str]) -> list[str]:
    """Return expressions for the same modules; those of several layers become one.

    `patterns` are :func:`pattern_of_set`'s.
    """
    numbers: dict[tuple[str, str], list[str]] = {}
    for pattern in patterns:
        match = _IN_LAYER.fullmatch(pattern)
        layers = numbers.setdefault((match[1], match[3]) if match else (pattern, ""), [])
        if match:
            layers.append(match[2])
    return [
        f"{before}({'|'.join(layers)}){after}" if layers else before
        for (before, after), layers in numbers.items()
    ]


def _below_prefix(module: str) -> str:
    """Return the name from its layer on: loaders put other names before it."""
    block = block_name(f"{module}.")
    return module[len(block) - len(".".join(block.split(".")[-2:])) :] if block else module


def find_split(forms: Mapping[str, object]) -> tuple[str, str] | None:
    """Return two modules of one fused set with different formats.

    `forms` has each module's format; None for 16 bits.
    """
    firsts: dict[tuple[str, int], str] = {}
    for module, form in forms.items():
        expert = _EXPERT.match(module)
        parent, _, leaf = module.rpartition(".")
        place = (
            -1
            if expert
            else next((n for n, siblings in enumerate(SIBLINGS) if leaf in siblings), None)
        )
        if place is None:
            continue
        first = firsts.setdefault((expert[1] if expert else parent, place), module)
        if forms[first] != form:
            return first, module
    return None


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

    It has names and `re:` expressions for llm-compressor, vLLM and ignored_modules.py.
    """
    ignored = list(dict.fromkeys(_to_supported_form(word) for word in recipe_ignore))
    layers = decoder_layers(config)
    matrices = {n: t for n, t in tensors.items() if is_quantizable(n, t, [])}
    kinds = {n: module_kind(n, len(t.shape), layers) for n, t in matrices.items()}
    heads = [_module(name) for name, kind in kinds.items() if kind == "lm_head"]
    if is_tied(config) and not is_ignored(OUTPUT_HEAD, ignored):
        ignored.append(OUTPUT_HEAD)
    if is_ignored(OUTPUT_HEAD, ignored):
        ignored += [name for name in heads if not is_ignored(name, ignored)]
    for kind in LEFT_ALONE:
        modules = [_module(name) for name, its in kinds.items() if its == kind]
        open_ones = [module for module in modules if not is_ignored(module, ignored)]
        if open_ones:
            ignored += _expressions(kind, open_ones, layers)
    linear = _match_part(ITS_GATES if fp8 else LINEAR_ATTENTION)
    if any(is_ignored(_module(name), [linear]) for name in matrices) and linear not in ignored:
        ignored.append(linear)
    if STACKED_EXPERTS not in ignored and any(
        is_expert_stack(name, len(tensor.shape)) for name, tensor in tensors.items()
    ):
        ignored.append(STACKED_EXPERTS)
    return ignored


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
