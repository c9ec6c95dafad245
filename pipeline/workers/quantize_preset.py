"""Worker: a calibrated preset of compressed-tensors, by llm-compressor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.core.events import Progress
from pipeline.workers.quantize_llm_compressor import (
    OBSERVERS,
    kv_cache_scheme,
    quantize_whole_model,
)


def run(spec: dict[str, Any], progress: Progress, output: Path) -> dict[str, Any]:
    """Write the quantized checkpoint into `output`; see :func:`quantize_whole_model`."""
    quantization = spec["quantization"]
    observer = quantization["observer"]

    def modifiers(model: Any, group_size: int | None) -> list[Any]:
        from llmcompressor.modifiers.quantization import QuantizationModifier

        return [
            QuantizationModifier(
                targets="Linear",
                scheme=quantization["scheme"],
                ignore=quantization["ignore"],
                weight_observer=None if observer == "minmax" else OBSERVERS[observer],
                kv_cache_scheme=kv_cache_scheme(quantization),
            )
        ]

    return quantize_whole_model(spec, progress, output, modifiers)
