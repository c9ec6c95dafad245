"""Worker: GPTQ, after AWQ or SmoothQuant if the recipe requires it, by llm-compressor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.core.events import Progress
from pipeline.workers.quantize_llm_compressor import (
    kv_cache_scheme,
    quantize_whole_model,
    weights_in_groups,
)


def run(spec: dict[str, Any], progress: Progress, output: Path) -> dict[str, Any]:
    """Write the quantized checkpoint into `output`; see :func:`quantize_whole_model`."""
    quantization = spec["quantization"]

    def modifiers(model: Any, group_size: int | None) -> list[Any]:
        from compressed_tensors.quantization import preset_name_to_scheme
        from llmcompressor.modifiers.gptq import GPTQModifier
        from llmcompressor.modifiers.transform.awq import AWQModifier
        from llmcompressor.modifiers.transform.smoothquant import SmoothQuantModifier

        made: list[Any] = []
        strength = quantization["smoothing_strength"]
        if strength is not None:
            mappings = smoothed_layers(model)
            made.append(SmoothQuantModifier(smoothing_strength=strength, mappings=mappings))
        if quantization["awq_grid_points"] is not None:
            made.append(AWQModifier(n_grid=quantization["awq_grid_points"]))
        how: dict[str, Any] = {"targets": "Linear", "scheme": quantization["scheme"]}
        if group_size is not None:
            fp8 = quantization["scheme"] == "W4A8"
            inputs = preset_name_to_scheme("W4AFP8", []).input_activations if fp8 else None
            groups = weights_in_groups(4, group_size, symmetric=True, inputs=inputs)
            how = {"config_groups": groups}
        made.append(
            GPTQModifier(
                dampening_frac=quantization["dampening"],
                ignore=quantization["ignore"],
                kv_cache_scheme=kv_cache_scheme(quantization),
                **how,
            )
        )
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
