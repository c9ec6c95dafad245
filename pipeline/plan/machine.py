"""Memory, disk and GPUs of this machine."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from pipeline.core.hardware import NodeInfo
from recipes import catalog
from recipes.gpu import GpuType


@dataclass(frozen=True)
class Machine:
    """Memory, disk and GPUs that a run can use."""

    memory_bytes: int  # of the machine, or what its container may use
    free_disk_bytes: int  # where the store is
    gpu: str | None = None  # name of the first NVIDIA GPU that CUDA shows us; None without one
    gpus: int = 0  # visible GPUs of that type
    compute_capability: float | None = None  # of the first
    gpu_memory_gib: float | None = None  # of the first, as the driver has it
    driver: str = ""  # driver version; empty if unknown or irrelevant
    visible_devices: str | None = None  # CUDA_VISIBLE_DEVICES; None if unset


def machine_of(node: NodeInfo, store: Path, *, with_gpu: bool) -> Machine:
    """Return the node's resources with the free space of our store's disk."""
    gpus = node.gpus if with_gpu else ()
    first = gpus[0] if gpus else None
    return Machine(
        memory_bytes=node.memory_bytes,
        free_disk_bytes=shutil.disk_usage(existing_folder(store)).free,
        gpu=first.name if first else None,
        gpus=sum(gpu.name == gpus[0].name for gpu in gpus),
        compute_capability=first.compute_capability if first else None,
        gpu_memory_gib=first.memory_gib if first else None,
        driver=first.driver if first else "",
        visible_devices=node.visible_devices if with_gpu else None,
    )


def gpu_type(machine: Machine) -> GpuType | None:
    """Return the built-in type of the machine's GPU, or one with the memory that the driver has.

    None if the memory is unknown.
    """
    if machine.gpu is None:
        return None
    if found := catalog.gpu_of_driver(machine.gpu):
        return found
    if machine.gpu_memory_gib is None or machine.compute_capability is None:
        return None
    return GpuType(
        name="this-gpu",
        summary=machine.gpu,
        driver_name=machine.gpu,
        memory_gib=machine.gpu_memory_gib,
        compute_capability=machine.compute_capability,
    )


def existing_folder(path: Path) -> Path:
    """Return the nearest existing directory of `path` and its parents."""
    path = path.absolute()
    return next(each for each in (path, *path.parents) if each.is_dir())
