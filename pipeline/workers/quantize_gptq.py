"""Worker: GPTQ, after SmoothQuant if the recipe requires it, by llm-compressor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.core.events import Progress
from pipeline.workers.quantize_llm_compressor import quantize_whole_model, weights_in_groups


def run(spec: dict[str, Any], progress: Progress, output: Path) -> dict[str, Any]:
    """Write the quantized checkpoint into `output`; see :func:`quantize_whole_model`."""
    quantization = spec["quantization"]

    def modifiers(model: Any, group_size: int | None) -> list[Any]:
        from llmcompressor.modifiers.gptq import GPTQModifier
        from llmcompressor.modifiers.transform.smoothquant import SmoothQuantModifier

        made: list[Any] = []
        strength = quantization["smoothing_strength"]
        if strength is not None:
            mappings = smoothed_layers(model)
            made.append(SmoothQuantModifier(smoothing_strength=strength, mappings=mappings))
        how: dict[str, Any] = {"targets": "Linear", "scheme": quantization["scheme"]}
        if group_size is not None:
            how = {"config_groups": weights_in_groups(4, group_size, symmetric=True)}
        ignore = quantization["ignore"]
        made.append(GPTQModifier(dampening_frac=quantization["dampening"], ignore=ignore, **how))
        return made

    return quantize_whole_model(spec, progress, output, modifiers)


def smoothed_layers(model: Any) -> list[tuple[list[str], str]] | None:
    """Return SmoothQuant's mappings where llm-compressor's table is wrong; else None.

    Gemma 2 and 3 have a separate norm before the MLP; the table takes `post_attention_layernorm`
    for it, which comes after the attention.
    """
    before_mlp = "pre_feedforward_layernorm"
    if not any(name.endswith(f".{before_mlp}") for name, _ in model.named_modules()):
        return None
    return [
        (["re:.*q_proj$", "re:.*k_proj$", "re:.*v_proj$"], "re:.*input_layernorm$"),
        (["re:.*gate_proj$", "re:.*up_proj$"], f"re:.*{before_mlp}$"),
    ]
