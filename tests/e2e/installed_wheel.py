"""The built wheel, installed in a new environment, and its command there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def build_wheel(folder: Path) -> Path:
    """Build this checkout's wheel into the folder."""
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir"]
    subprocess.run([*build, str(folder), str(ROOT)], check=True, timeout=300)
    (wheel,) = folder.glob("*.whl")
    return wheel


def run_installed(
    program: Path, *arguments: str | Path, home: Path, timeout: float = 300, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run an environment's program, with any exit code."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(
        [str(word) for word in (program, *arguments)],
        env={**kept, "PREPARE_HOME": str(home), "HF_HUB_OFFLINE": "1", **variables},
        cwd=home,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
