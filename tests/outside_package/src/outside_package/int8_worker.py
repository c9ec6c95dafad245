"""The worker of the kind `nearest_int8`, inside the environment `quantize`.

Module level: the standard library and modules of this project that need no more.
"""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

from prepare.events import Progress

EMBEDDINGS = "re:.*embed_tokens$"  # the library would quantize them too


def run(spec: dict[str, Any], progress: Progress, output: Path) -> dict[str, Any]:
    """Write safetensors and config.json into `output`; the stage adds the tokenizer's files.

    Args:
        spec: checkpoint (folder), quantization (the recipe's keys, `ignore` resolved), group_sizes,
            calibration_file, trust_remote_code, compute_dtype.

    Returns:
        facts of QuantizeResult.
    """
    from llmcompressor import model_free_ptq

    progress.note("rounding to nearest")
    ignore = [*spec["quantization"]["ignore"], EMBEDDINGS]
    model_free_ptq(spec["checkpoint"], str(output), scheme="W8A8", ignore=ignore)
    return {"scheme": "W8A8", "versions": {"llmcompressor": version("llmcompressor")}}
