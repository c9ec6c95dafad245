"""Which accelerator this machine has."""

from __future__ import annotations

from pipeline.core.gpus import visible_gpus
from pipeline.environments.definition import Accelerator


def detect_accelerator() -> Accelerator:
    """CUDA where a process started here would see a GPU, else CPU."""
    return Accelerator.CUDA if visible_gpus() else Accelerator.CPU
