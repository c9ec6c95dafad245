"""Size of this machine's memory; standard library only, for workers."""

from __future__ import annotations

import os
from pathlib import Path

CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),  # version 2, as seen in the container
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),  # version 1
)


def memory_bytes() -> int:
    """Return the total memory, or a container's lower limit."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([physical, *(limit for file in CGROUP_LIMITS if (limit := _limit(file)))])


def available_bytes() -> int:
    """Return the available memory, or a container's lower limit."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    available = next(int(line.split()[1]) * 1024 for line in lines if "MemAvailable" in line)
    return min(available, memory_bytes())


def _limit(file: Path) -> int | None:
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None  # "max" means no limit
