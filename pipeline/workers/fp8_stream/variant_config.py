"""config.json and index of an FP8 checkpoint, as llm-compressor writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pipeline.checkpoint.weight_files import INDEX
from pipeline.workers.fp8_stream.layout import ShardPlan


def quantization_config(scheme: str, ignore: list[str]) -> dict[str, Any]:
    """Return the config for all layers except those, by the library's classes."""
    from importlib.metadata import version

    from compressed_tensors.config import CompressionFormat
    from compressed_tensors.quantization import (
        QuantizationConfig,
        QuantizationStatus,
        preset_name_to_scheme,
    )

    group = preset_name_to_scheme(scheme, ["Linear"])
    group.format = CompressionFormat.float_quantized.value
    # The observer that llm-compressor puts where the preset leaves it open, for weights.
    group.weights.observer = group.weights.observer or "memoryless_minmax"
    config = QuantizationConfig(
        config_groups={"group_0": group},
        quantization_status=QuantizationStatus.COMPRESSED,
        format=CompressionFormat.float_quantized.value,
        ignore=ignore,
    )
    return {
        "version": version("compressed-tensors"),
        "quant_method": "compressed-tensors",
        "sparsity_config": {},
        "transform_config": {},
        **config.model_dump(exclude={"quant_method"}, mode="json"),
    }


def write_config(output: Path, config: dict[str, Any], quantization: dict[str, Any]) -> None:
    """Write the source's config.json with its quantization_config."""
    text = json.dumps(config | {"quantization_config": quantization}, indent=2, sort_keys=True)
    (output / "config.json").write_text(text)


def write_index(output: Path, plans: list[ShardPlan]) -> None:
    """Write the index of tensors to files; nothing for one file of the usual name."""
    if [plan.name for plan in plans] == ["model.safetensors"]:
        return
    index = {
        "metadata": {"total_size": sum(sum(plan.tensors.values()) for plan in plans)},
        "weight_map": {name: plan.name for plan in plans for name in sorted(plan.tensors)},
    }
    (output / INDEX).write_text(json.dumps(index, indent=2) + "\n")
