"""Memory, disk and GPUs of this machine, and what they lack."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from prepare.errors import PreflightError, PrepareError, UsageError
from prepare.gpus import MIN_DRIVER_VERSION, is_driver_too_old
from prepare.hardware import NodeInfo
from recipes import catalog
from recipes.catalog import GpuType
from recipes.engine_arguments import DIVIDES_GPUS, count_gpus
from recipes.schema import Recipe, ServingProfile


@dataclass(frozen=True)
class Machine:
    """Resources that a run can use."""

    memory_bytes: int  # the machine's, or its container's limit
    free_disk_bytes: int  # at the store
    gpu: str | None = None  # name of the first NVIDIA GPU visible to CUDA; None without one
    gpus: int = 0  # visible GPUs of that type
    compute_capability: float | None = None  # of the first
    gpu_memory_gib: float | None = None  # of the first, by the driver
    driver: str = ""  # empty if unknown or irrelevant
    visible_devices: str | None = None  # CUDA_VISIBLE_DEVICES; None if unset


def machine_of(node: NodeInfo, store: Path, *, with_gpu: bool) -> Machine:
    """Return the node's resources, with the store's free space."""
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
    """Return the GPU's type; None if unknown."""
    if machine.gpu is None:
        return None
    if known_type := catalog.gpu_of_driver(machine.gpu):
        return known_type
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
    """Return the nearest existing directory."""
    path = path.absolute()
    return next(folder for folder in (path, *path.parents) if folder.is_dir())


def find_missing_gpus(profile: ServingProfile, machine: Machine) -> PrepareError | None:
    """Return an error if a server needs more GPUs."""
    if profile.accelerator != "cuda":
        return None
    wanted = count_gpus(profile.engine_arguments)
    if machine.gpus >= wanted:
        return None
    present = f"this machine has {machine.gpus}" if machine.gpus else "none is found here"
    if machine.visible_devices is not None:
        present += f" that CUDA_VISIBLE_DEVICES={machine.visible_devices} shows"
    profiles = [catalog.load_profile(name) for name in catalog.profile_names()]
    fitting = [
        other.name
        for other in profiles
        if other.accelerator == "cpu" or count_gpus(other.engine_arguments) <= machine.gpus
    ]
    keys = [name for name in DIVIDES_GPUS if profile.engine_arguments.get(name, 1) != 1]
    return UsageError(
        f"the profile '{profile.name}' serves on {wanted} NVIDIA GPU{'s' if wanted > 1 else ''}"
        f", and {present}",
        where=", key engine_arguments.".join([f"--profile {profile.name}", *keys]),
        hint="run where nvidia-smi lists them, all of one kind; or choose a profile that fits "
        f"here: {', '.join(fitting)}",
    )


def find_driver_fault(profile: ServingProfile, machine: Machine) -> PrepareError | None:
    """Refuse a driver too old for the locks' CUDA."""
    if profile.accelerator != "cuda" or not is_driver_too_old(machine.driver):
        return None
    return PreflightError(
        f"the NVIDIA driver is {machine.driver}, and the CUDA 13 of the environments needs "
        f"{MIN_DRIVER_VERSION} or newer",
        where=f"--profile {profile.name}",
        hint=f"install a driver from {MIN_DRIVER_VERSION} on; or name interpreters of your own for "
        "quantize and serve in the settings file, built for an older CUDA",
    )


def find_gpu_fault(
    recipe: Recipe, profile: ServingProfile, machine: Machine
) -> PrepareError | None:
    """Refuse a GPU without the recipe's kernels."""
    capability = machine.compute_capability if profile.accelerator == "cuda" else None
    if capability is None or not (lack := recipe.lacks_kernels_on(capability)):
        return None
    return UsageError(
        f"'{recipe.name}' {lack}, this one has {capability}",
        where=f"--recipe {recipe.name}",
        hint="leave the recipe out, or run on another GPU",
    )
