"""Runs a test's script in the evaluate environment, which has lm-eval."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from pipeline.environments.environment import ensure
from pipeline.environments.settings import load_settings
from prepare.events import NullProgress
from recipes.accelerator import Accelerator

ROOT = Path(__file__).parents[2]


def run_in_evaluate(
    script: str, folder: Path, *words: str, seconds: float = 400, **variables: str
) -> dict[str, Any]:
    """What the script printed; its arguments are the source tree, the folder and the words."""
    python = ensure("evaluate", Accelerator.CPU, load_settings(), NullProgress()).python
    (folder / "script.py").write_text(script)
    answer = subprocess.run(
        [str(python), "-I", str(folder / "script.py"), str(ROOT), str(folder), *words],
        capture_output=True,
        text=True,
        timeout=seconds,
        env={**os.environ, "HF_HUB_OFFLINE": "1", **variables},
        check=False,
    )
    assert answer.returncode == 0, answer.stderr[-3000:]
    line = next(line for line in answer.stdout.splitlines() if line.startswith("RESULT "))
    found: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
    return found
