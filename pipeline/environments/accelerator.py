"""Detection of this machine's accelerator."""

from __future__ import annotations

from pipeline.core.gpus import visible_gpus
from pipeline.environments.definition import Accelerator


def detect_accelerator() -> Accelerator:
    """Return CUDA if a child process would see a GPU, or CPU."""
    return Accelerator.CUDA if visible_gpus() else Accelerator.CPU
