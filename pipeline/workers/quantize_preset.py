"""Worker: one or more calibrated presets of compressed-tensors, by llm-compressor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.core.events import Progress
from pipeline.workers.quantize_llm_compressor import (
    kv_cache_scheme,
    quantize_whole_model,
)
from recipes.ignored_modules import to_expression


def run(spec: dict[str, Any], progress: Progress, output: Path) -> dict[str, Any]:
    """Write the quantized checkpoint into `output`; see :func:`quantize_whole_model`."""
    quantization = spec["quantization"]

    def modifiers(model: Any, group_size: int | None) -> list[Any]:
        from llmcompressor.modifiers.quantization import QuantizationModifier

        # A named module's scheme precedes the one of its class, here and in vLLM.
        others = {
            scheme: [word if (to := to_expression(word)) is None else f"re:{to}" for word in words]
            for scheme, words in quantization["other_schemes"].items()
        }
        return [
            QuantizationModifier(
                scheme={**others, quantization["scheme"]: ["Linear"]},
                ignore=quantization["ignore"],
                kv_cache_scheme=kv_cache_scheme(quantization),
            )
        ]

    return quantize_whole_model(spec, progress, output, modifiers)
