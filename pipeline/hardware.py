"""What machine this is, as far as a verdict depends on it."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path
from typing import Any


def gpu_name() -> str | None:
    """Name of the first NVIDIA GPU as the driver gives it; None without one."""
    return _ask_driver("name")


def compute_capability() -> float | None:
    """Compute capability of the first NVIDIA GPU, such as 8.9; None without one."""
    answer = _ask_driver("compute_cap")
    return float(answer) if answer else None


def gpu_count() -> int:
    """How many NVIDIA GPUs the driver lists."""
    return len(_driver_lines("name"))


def hardware(accelerator: str) -> dict[str, Any]:
    """What the engine runs on: part of the deployable tuple."""
    if accelerator == "cuda":
        return {"accelerator": accelerator, "gpu": gpu_name() or "not found"}
    model = ""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return {"accelerator": accelerator, "cpu": model, "cores": len(os.sched_getaffinity(0))}


def machine() -> str:
    """Which machine this is: speeds measured on two machines are not compared."""
    try:
        return Path("/etc/machine-id").read_text().strip() or platform.node()
    except OSError:
        return platform.node()


def _ask_driver(field: str) -> str | None:
    lines = _driver_lines(field)
    return lines[0] if lines else None


def _driver_lines(field: str) -> list[str]:
    """A line a GPU; none without a driver."""
    try:
        answer = subprocess.run(
            ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    if answer.returncode != 0:
        return []
    return [line.strip() for line in answer.stdout.strip().splitlines()]
