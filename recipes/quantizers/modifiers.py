"""llm-compressor's modifiers for a recipe, on the text model alone.

A mapping of AWQ or SmoothQuant names a norm or layer, and the layers that read its output. If some
blocks lack one (dense blocks have no router, and keys may be the values too), the library pairs
those of several blocks and fails, so it is divided.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from recipes.checkpoints.module_kind import VISION, block_name
from recipes.module_lists import to_expression

# The library's expressions begin with this; they match towers for images and audio, too.
EXPRESSION = "re:"
IN_TEXT_MODEL = rf"{EXPRESSION}(?!(?:.*\.)?(?:{'|'.join(VISION)}))"


def text_only(expression: str) -> str:
    """Return the expression for modules outside of towers and projectors."""
    return expression.replace(EXPRESSION, IN_TEXT_MODEL, 1)


def awq_mappings(model: Any) -> list[Any]:
    """Return llm-compressor's mappings, divided by kinds of block."""
    from llmcompressor.modifiers.transform.awq import AWQMapping
    from llmcompressor.modifiers.transform.awq.dynamic_mappings import get_layer_mappings_from_model

    names = [name for name, _ in model.named_modules()]
    return [
        AWQMapping(before, layers, mapping.activation_hook_target)
        for mapping in get_layer_mappings_from_model(model)
        for before, layers in divide(
            text_only(mapping.smooth_layer),
            [text_only(layer) for layer in mapping.balance_layers],
            names,
        )
    ]


def divide(before: str, layers: Sequence[str], names: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Return the mapping, or one for each kind of block if some blocks lack a part of it.

    `before` and `layers` are expressions: of a norm or layer, and of its readers.
    """
    present = [
        {block_name(f"{name}.") for name in names if matches(expression, name)}
        for expression in (before, *layers)
    ]
    kinds: dict[tuple[str, ...], list[str]] = {}
    for block in sorted(present[0]):
        present_layers = (
            layer for layer, blocks in zip(layers, present[1:], strict=True) if block in blocks
        )
        kinds.setdefault(tuple(present_layers), []).append(block)
    if set(kinds) <= {tuple(layers)} and all(present[0] >= layer for layer in present[1:]):
        return [(before, [*layers])]
    return [
        (in_blocks(before, blocks), [in_blocks(layer, blocks) for layer in present_layers])
        for present_layers, blocks in kinds.items()
        if present_layers
    ]


def matches(expression: str, name: str) -> bool:
    """Return whether a target has the module."""
    if expression.startswith(EXPRESSION):
        return re.match(expression.removeprefix(EXPRESSION), name) is not None
    return expression == name


def in_blocks(expression: str, blocks: Sequence[str]) -> str:
    """Return the expression for these blocks' modules only."""
    inside = "|".join(map(re.escape, blocks))
    return expression.replace(EXPRESSION, rf"{EXPRESSION}(?=(?:{inside})\.)", 1)


def smoothquant_mappings(model: Any) -> list[tuple[list[str], str]]:
    """Return llm-compressor's mappings, or others where its table is wrong.

    Gemma 2 and 3 have a separate norm before the MLP; the table takes the one after the attention.
    """
    from llmcompressor.modifiers.transform.smoothquant.dynamic_mappings import (
        get_layer_mappings_from_model,
    )

    before_mlp = "pre_feedforward_layernorm"
    if any(name.endswith(f".{before_mlp}") for name, _ in model.named_modules()):
        mappings = [
            (["re:.*q_proj$", "re:.*k_proj$", "re:.*v_proj$"], "re:.*input_layernorm$"),
            (["re:.*gate_proj$", "re:.*up_proj$"], f"re:.*{before_mlp}$"),
        ]
    else:
        mappings = [tuple(mapping) for mapping in get_layer_mappings_from_model(model)]
    return [
        ([text_only(layer) for layer in layers], text_only(before)) for layers, before in mappings
    ]


# How a group's range is found. Both read the weights alone, again every time.
OBSERVERS = {"minmax": "memoryless_minmax", "mse": "memoryless_mse"}


def modifiers(quantization: dict[str, Any], model: Any, group_size: int | None) -> list[Any]:
    """Return llm-compressor's modifiers in running order."""
    from compressed_tensors.quantization import preset_name_to_scheme
    from llmcompressor.modifiers.gptq import GPTQModifier
    from llmcompressor.modifiers.quantization import QuantizationModifier
    from llmcompressor.modifiers.transform.awq import AWQModifier
    from llmcompressor.modifiers.transform.smoothquant import SmoothQuantModifier

    common = {"ignore": quantization["ignore"], "kv_cache_scheme": kv_cache_scheme(quantization)}
    # A named module's scheme precedes the one of its class, here and in vLLM.
    groups = {
        f"group_{number}": other_scheme(scheme, words)
        for number, (scheme, words) in enumerate(quantization["other_schemes"].items())
    }
    rest = f"group_{len(groups)}"
    if quantization["kind"] == "preset":
        groups[rest] = preset_name_to_scheme(quantization["scheme"], ["Linear"])
        return [QuantizationModifier(config_groups=groups, **common)]
    if quantization["kind"] == "awq":
        groups[rest] = weights_in_groups(
            quantization["bits"],
            group_size,
            symmetric=quantization["symmetric"],
            observer=OBSERVERS[quantization["observer"]],
        )
        return [
            AWQModifier(mappings=awq_mappings(model), n_grid=quantization["grid_points"]),
            QuantizationModifier(config_groups=groups, **common),
        ]
    strength = quantization["smoothing_strength"]
    smoothing = []
    if strength is not None:
        mappings = smoothquant_mappings(model)
        smoothing.append(SmoothQuantModifier(smoothing_strength=strength, mappings=mappings))
    groups[rest] = (
        preset_name_to_scheme("W8A8", ["Linear"])
        if group_size is None
        else weights_in_groups(4, group_size, symmetric=True)
    )
    gptq = GPTQModifier(dampening_frac=quantization["dampening"], config_groups=groups, **common)
    return [*smoothing, gptq]


def other_scheme(scheme: str, words: Sequence[str]) -> Any:
    """Return the library's scheme for the modules in a list of the recipe."""
    from compressed_tensors.quantization import (
        QuantizationArgs,
        QuantizationScheme,
        preset_name_to_scheme,
    )

    targets = [
        word if (expression := to_expression(word)) is None else f"{EXPRESSION}{expression}"
        for word in words
    ]
    if scheme != "W8A16":
        return preset_name_to_scheme(scheme, targets)
    weights = QuantizationArgs(
        num_bits=8, type="int", symmetric=True, strategy="channel", observer=OBSERVERS["minmax"]
    )
    return QuantizationScheme(targets=targets, weights=weights, format="pack-quantized")


def weights_in_groups(
    bits: int,
    group_size: int | None,
    *,
    symmetric: bool,
    observer: str = OBSERVERS["minmax"],
) -> Any:
    """Return a scheme of integer weights with scales by groups of columns."""
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    weights = QuantizationArgs(
        num_bits=bits,
        type="int",
        symmetric=symmetric,
        strategy="group",
        group_size=group_size,
        observer=observer,
    )
    return QuantizationScheme(targets=["Linear"], weights=weights, format="pack-quantized")


def kv_cache_scheme(quantization: dict[str, Any]) -> Any:
    """Return an FP8 KV cache with static scales, which vLLM reads as k_scale and v_scale.

    Its calibration follows AWQ's scaling.
    """
    from compressed_tensors.quantization import QuantizationArgs

    unit = quantization["kv_cache_scales"]
    if unit is None:
        return None
    return QuantizationArgs(
        num_bits=8,
        type="float",
        strategy="attn_head" if unit == "head" else "tensor",
        symmetric=True,
        dynamic=False,
        observer="static_minmax",
    )
