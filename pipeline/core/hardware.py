"""What machine this is, as far as a verdict depends on it."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from pydantic import Field

from pipeline.core.cpu_features import cpu_features
from pipeline.core.gpus import visible_gpus
from pipeline.core.record import SparseRecord


class Hardware(SparseRecord):
    """What the engine runs on, a member of the deployable tuple; of somebody's endpoint nothing."""

    accelerator: str | None = None
    gpu: str | None = Field(None, description="name of the first, as the driver gives it")
    cpu: str | None = Field(None, description="the processor's model")
    cores: int | None = Field(None, strict=True, description="that a process may use")
    cpu_features: list[str] | None = Field(None, description="None where nobody looked")


def gpu_name() -> str | None:
    """Name of the first NVIDIA GPU that a process sees, as the driver gives it; None without."""
    gpus = visible_gpus()
    return gpus[0].name if gpus else None


def hardware(accelerator: str) -> Hardware:
    """What the engine would run on here."""
    if accelerator == "cuda":
        return Hardware(accelerator=accelerator, gpu=gpu_name() or "not found")
    model = ""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return Hardware(
        accelerator=accelerator,
        cpu=model,
        cores=len(os.sched_getaffinity(0)),
        cpu_features=list(cpu_features()),
    )


def machine() -> str:
    """Which machine this is: speeds measured on two machines are not compared."""
    try:
        return Path("/etc/machine-id").read_text().strip() or platform.node()
    except OSError:
        return platform.node()
