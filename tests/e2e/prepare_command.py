"""The command, run as a user runs it, on a store of the test's own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def prepare(
    store: Path, *arguments: str, timeout: float = 1500
) -> subprocess.CompletedProcess[str]:
    """Run `prepare` to its end, with any exit code."""
    return subprocess.run(
        [sys.executable, "-P", "-m", "prepare", *arguments],
        env={**os.environ, "PREPARE_STORE": str(store)},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
