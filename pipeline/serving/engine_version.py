"""Version of an engine."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from pipeline.core.errors import ServingError, raise_as
from pipeline.core.process_environment import server_environment
from recipes.engines import find_engine

ANSWER_TIMEOUT_S = 120


def engine_version(engine: str, python: Path) -> str:
    """Return the version that the engine reports, or raise ServingError."""
    with raise_as(
        ServingError,
        "the engine does not report its version",
        python,
        "`prepare doctor` checks the environments",
        errors=(OSError, subprocess.SubprocessError),
    ):
        answer = subprocess.run(
            find_engine(engine).version_command(str(python)),
            env=server_environment(os.environ, {}, python=python),
            capture_output=True,
            text=True,
            timeout=ANSWER_TIMEOUT_S,
            check=True,
        )
    lines = [line for line in answer.stdout.splitlines() if line.startswith("engine-version ")]
    return lines[-1].split()[1] if lines else "unknown"
