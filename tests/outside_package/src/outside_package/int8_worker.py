"""The worker of the kind `nearest_int8`, inside the environment `quantize`."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

from pipeline.core.events import Progress

EMBEDDINGS = "re:.*embed_tokens$"  # the library would quantize them too


def run(spec: dict[str, Any], progress: Progress, output: Path) -> dict[str, Any]:
    from llmcompressor import model_free_ptq

    progress.note("rounding to nearest")
    ignore = [*spec["quantization"]["ignore"], EMBEDDINGS]
    model_free_ptq(spec["checkpoint"], str(output), scheme="W8A8", ignore=ignore)
    return {"scheme": "W8A8", "versions": {"llmcompressor": version("llmcompressor")}}
