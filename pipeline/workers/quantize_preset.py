"""Worker: a calibrated preset of compressed-tensors, by llm-compressor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.core.events import Progress
from pipeline.workers.quantize_llm_compressor import quantize_whole_model


def run(spec: dict[str, Any], progress: Progress, output: Path) -> dict[str, Any]:
    """Write the quantized checkpoint into `output`; see :func:`quantize_whole_model`."""
    quantization = spec["quantization"]

    def modifiers(model: Any, group_size: int | None) -> list[Any]:
        from llmcompressor.modifiers.quantization import QuantizationModifier

        return [
            QuantizationModifier(
                targets="Linear",
                scheme=quantization["scheme"],
                ignore=quantization["ignore"],
                kv_cache_scheme=kv_cache_scales() if quantization["kv_cache_scales"] else None,
            )
        ]

    return quantize_whole_model(spec, progress, output, modifiers)


def kv_cache_scales() -> Any:
    """Return an FP8 KV cache with one static scale a layer, read by vLLM as k_scale and v_scale."""
    from compressed_tensors.quantization import QuantizationArgs

    return QuantizationArgs(
        num_bits=8,
        type="float",
        strategy="tensor",
        symmetric=True,
        dynamic=False,
        observer="static_minmax",
    )
