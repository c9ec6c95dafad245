"""Worker: AWQ, by llm-compressor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.core.events import Progress
from pipeline.workers.quantize_llm_compressor import (
    OBSERVERS,
    kv_cache_scheme,
    quantize_whole_model,
    weights_in_groups,
)
from pipeline.workers.text_mappings import awq_mappings


def run(spec: dict[str, Any], progress: Progress, output: Path) -> dict[str, Any]:
    """Write the quantized checkpoint into `output`; see :func:`quantize_whole_model`."""
    quantization = spec["quantization"]

    def modifiers(model: Any, group_size: int | None) -> list[Any]:
        from llmcompressor.modifiers.quantization import QuantizationModifier
        from llmcompressor.modifiers.transform.awq import AWQModifier

        groups = weights_in_groups(
            quantization["bits"],
            group_size,
            symmetric=quantization["symmetric"],
            observer=OBSERVERS[quantization["observer"]],
        )
        return [
            AWQModifier(mappings=awq_mappings(model), n_grid=quantization["grid_points"]),
            QuantizationModifier(
                config_groups=groups,
                ignore=quantization["ignore"],
                kv_cache_scheme=kv_cache_scheme(quantization),
            ),
        ]

    return quantize_whole_model(spec, progress, output, modifiers)
