"""Which accelerator this machine has."""

from __future__ import annotations

import shutil
import subprocess

from pipeline.environments.definition import Accelerator

_SECONDS_FOR_DRIVER = 30


def detect_accelerator() -> Accelerator:
    """CUDA where the NVIDIA driver lists a GPU, else CPU."""
    answer = ask_driver("-L")
    return Accelerator.CUDA if answer and answer.startswith("GPU") else Accelerator.CPU


def ask_driver(*arguments: str) -> str | None:
    """What ``nvidia-smi`` prints; None where it is missing or fails."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    try:
        answer = subprocess.run(
            [program, *arguments],
            capture_output=True,
            text=True,
            timeout=_SECONDS_FOR_DRIVER,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None
