"""Modules that vLLM fuses into one matrix, which must have one format."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from recipes.checkpoints.module_kind import block_name

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
