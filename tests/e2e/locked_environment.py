"""A separate environment, made from a lock, for a server or a checker that tests start."""

from __future__ import annotations

import sys
from pathlib import Path

from pipeline.environments.installer import run_uv


def make_environment(folder: Path, lock: Path) -> Path:
    """Install the lock; return the interpreter."""
    run_uv(
        ["venv", "--no-project", "--python", sys.executable, str(folder / "venv")],
        folder=folder,
    )
    made = folder / "venv" / "bin" / "python"
    run_uv(
        ["pip", "install", "--python", str(made), "--no-deps", "--require-hashes", "-r", str(lock)],
        folder=folder,
    )
    return made
