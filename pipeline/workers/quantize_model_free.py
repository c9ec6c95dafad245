"""Worker: 4-bit floats without calibration, file by file, by llm-compressor's `model_free_ptq`."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from pipeline.checkpoint.weight_files import INDEX, read_headers, read_json
from pipeline.core.events import Progress
from pipeline.inspection.linear_layers import WEIGHT, is_quantizable, is_tied
from pipeline.workers.protocol import versions_of
from pipeline.workers.streamed_tensors import check_supported

CONFIGS = ("config.json", "generation_config.json")


def run(spec: dict[str, Any], progress: Progress, output: Path) -> dict[str, Any]:
    """Write the quantized checkpoint into `output`, which is emptied first.

    The library takes every weight for a linear layer's, so all others are on its list of what to
    ignore.

    Args:
        spec: as in `Quantization.worker`.

    Returns:
        facts of QuantizeResult.

    Raises:
        StageError: names and shapes do not determine how to quantize the checkpoint.
    """
    from llmcompressor import model_free_ptq

    source = Path(spec["checkpoint"])
    quantization = spec["quantization"]
    ignore = quantization["ignore"]
    config = read_json(source / "config.json")
    headers = read_headers(source)
    tensors = {name: tensor for each in headers.values() for name, tensor in each.tensors.items()}
    check_supported(tensors, config, ignore, source)
    chosen = {name for name, tensor in tensors.items() if is_quantizable(name, tensor, ignore)}
    kept = [
        name.removesuffix(WEIGHT)
        for name in tensors
        if name.endswith(WEIGHT) and name not in chosen
    ]
    heads = ["lm_head"] if is_tied(config) and "lm_head" not in kept else []
    shutil.rmtree(output)
    output.mkdir()
    with tempfile.TemporaryDirectory() as needed:
        # The library copies each other file of its input, pickled weights too.
        for file in (*headers, *(source / name for name in (INDEX, *CONFIGS))):
            if file.exists():
                (Path(needed) / file.name).symlink_to(file)
        progress.note(f"casting {len(headers)} weight files")
        model_free_ptq(needed, output, scheme=quantization["scheme"], ignore=kept + heads)
    return {
        "scheme": quantization["scheme"],
        "group_size": spec["group_sizes"][0],
        "quantized_modules": len(chosen),
        "shards": len(headers),
        "source_bytes": sum(file.stat().st_size for file in headers),
        "versions": versions_of("llmcompressor", "compressed-tensors", "transformers", "torch"),
    }
