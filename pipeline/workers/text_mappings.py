"""Mappings of AWQ and SmoothQuant, limited to the text model of a model of images or sound."""

from __future__ import annotations

from typing import Any

from pipeline.inspection.module_kind import VISION

# The library's expressions begin with this; they match towers for images and audio, too.
EXPRESSION = "re:"
IN_TEXT_MODEL = rf"{EXPRESSION}(?!(?:.*\.)?(?:{'|'.join(VISION)}))"


def text_only(expression: str) -> str:
    """Return the expression for modules outside of towers and projectors."""
    return expression.replace(EXPRESSION, IN_TEXT_MODEL, 1)


def awq_mappings(model: Any) -> list[Any]:
    """Return llm-compressor's mappings for the model."""
    from llmcompressor.modifiers.transform.awq import AWQMapping
    from llmcompressor.modifiers.transform.awq.dynamic_mappings import get_layer_mappings_from_model

    return [
        AWQMapping(
            text_only(each.smooth_layer),
            [text_only(layer) for layer in each.balance_layers],
            each.activation_hook_target,
        )
        for each in get_layer_mappings_from_model(model)
    ]


def smoothquant_mappings(model: Any) -> list[tuple[list[str], str]]:
    """Return llm-compressor's mappings for the model, or others where its table is wrong.

    Gemma 2 and 3 have a separate norm before the MLP; the table takes `post_attention_layernorm`
    for it, which comes after the attention.
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
        mappings = [tuple(each) for each in get_layer_mappings_from_model(model)]
    return [
        ([text_only(layer) for layer in layers], text_only(before)) for layers, before in mappings
    ]
