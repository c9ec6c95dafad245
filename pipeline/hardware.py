"""What machine this is, as far as a verdict depends on it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any


def gpu_name() -> str | None:
    """Name of the first NVIDIA GPU as the driver gives it; None without one."""
    try:
        answer = subprocess.run(
            ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    names = answer.stdout.strip().splitlines()
    return names[0].strip() if answer.returncode == 0 and names else None


def hardware() -> dict[str, Any]:
    """What the engine runs on: part of the deployable tuple."""
    if name := gpu_name():
        return {"accelerator": "cuda", "gpu": name}
    model = ""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return {"accelerator": "cpu", "cpu": model, "cores": len(os.sched_getaffinity(0))}
