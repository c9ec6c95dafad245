"""What machine this is, as far as a verdict depends on it."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from pipeline.core.cpu_features import cpu_features
from pipeline.core.gpus import visible_gpus


def gpu_name() -> str | None:
    """Name of the first NVIDIA GPU that a process sees, as the driver gives it; None without."""
    gpus = visible_gpus()
    return gpus[0].name if gpus else None


def hardware(accelerator: str) -> dict[str, Any]:
    """What the engine runs on: part of the deployable tuple."""
    if accelerator == "cuda":
        return {"accelerator": accelerator, "gpu": gpu_name() or "not found"}
    model = ""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return {
        "accelerator": accelerator,
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "cpu_features": list(cpu_features()),
    }


def machine() -> str:
    """Which machine this is: speeds measured on two machines are not compared."""
    try:
        return Path("/etc/machine-id").read_text().strip() or platform.node()
    except OSError:
        return platform.node()
