"""Worker: GPTQ, after SmoothQuant if the recipe requires it, by llm-compressor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.core.events import Progress
from pipeline.workers.quantize_llm_compressor import (
    kv_cache_scheme,
    quantize_whole_model,
    weights_in_groups,
)
from pipeline.workers.text_mappings import smoothquant_mappings


def run(spec: dict[str, Any], progress: Progress, output: Path) -> dict[str, Any]:
    """Write the quantized checkpoint into `output`; see :func:`quantize_whole_model`."""
    quantization = spec["quantization"]

    def modifiers(model: Any, group_size: int | None) -> list[Any]:
        from compressed_tensors.quantization import preset_name_to_scheme
        from llmcompressor.modifiers.gptq import GPTQModifier
        from llmcompressor.modifiers.transform.smoothquant import SmoothQuantModifier

        made: list[Any] = []
        strength = quantization["smoothing_strength"]
        if strength is not None:
            mappings = smoothquant_mappings(model)
            made.append(SmoothQuantModifier(smoothing_strength=strength, mappings=mappings))
        groups = {"group_0": preset_name_to_scheme("W8A8", ["Linear"])}
        if group_size is not None:
            groups = weights_in_groups(4, group_size, symmetric=True)
        made.append(
            GPTQModifier(
                dampening_frac=quantization["dampening"],
                ignore=quantization["ignore"],
                config_groups=groups,
                kv_cache_scheme=kv_cache_scheme(quantization),
            )
        )
        return made

    return quantize_whole_model(spec, progress, output, modifiers)
