"""What this machine has: memory, disk, GPUs."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from pipeline.core.gpus import visible_gpus

CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),  # version 2: a container sees its own here
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),  # version 1
)


@dataclass(frozen=True)
class Machine:
    """What a run can use."""

    memory_bytes: int  # of the machine, or what its container may use
    free_disk_bytes: int  # where the store is
    gpu: str | None = None  # name of the first NVIDIA GPU that CUDA shows us; None without one
    gpus: int = 0  # how many of that kind it shows
    compute_capability: float | None = None  # of the first
    driver: str = ""  # version of the GPUs' driver; empty where it is not known, or does not matter
    visible_devices: str | None = None  # what hides others from CUDA; None where nothing does


def this_machine(store: Path, *, with_gpu: bool) -> Machine:
    """Look at the machine that we run on; the driver is asked only where GPUs matter.

    The folder of the store need not be there yet.
    """
    gpus = visible_gpus() if with_gpu else []
    first = gpus[0] if gpus else None
    return Machine(
        memory_bytes=memory_bytes(),
        free_disk_bytes=shutil.disk_usage(existing_folder(store)).free,
        gpu=first.name if first else None,
        gpus=sum(gpu.name == gpus[0].name for gpu in gpus),
        compute_capability=first.compute_capability if first else None,
        driver=first.driver if first else "",
        visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES") if with_gpu else None,
    )


def memory_bytes() -> int:
    """All memory, whoever uses it now; less where a container is limited."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([physical, *(limit for file in CGROUP_LIMITS if (limit := _limit(file)))])


def existing_folder(path: Path) -> Path:
    """The folder, or the nearest above it that is there: where it will be made."""
    path = path.absolute()
    return next(each for each in (path, *path.parents) if each.is_dir())


def _limit(file: Path) -> int | None:
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None  # "max" where there is none
