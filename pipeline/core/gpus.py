"""The NVIDIA GPUs that a process started here would see, as the driver reports them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

MIN_DRIVER_VERSION = 580
"""Of the CUDA version that the CUDA locks bring, 13: older drivers do not run it at all."""

_DRIVER_TIMEOUT_S = 30
_GPU = re.compile(r"GPU \d+: (?P<name>.+) \(UUID: (?P<uuid>\S+)\)")
_SLICE = re.compile(r"\s+MIG (?P<name>\S+)\s+Device\s+\d+: \(UUID: (?P<uuid>\S+)\)")


@dataclass(frozen=True)
class VisibleGpu:
    """A GPU, or the slice of one that multi-instance mode (MIG) makes."""

    name: str  # as the driver gives it; of a slice with its kind after it, such as "MIG 3g.40gb"
    uuid: str  # as CUDA_VISIBLE_DEVICES may name it
    driver: str = ""  # version of the driver; empty where it does not say
    memory: str = ""  # all of it, in the driver's words; empty where it does not say
    compute_capability: float | None = None  # such as 9.0; None where it does not say
    is_slice: bool = False  # whether it is one of MIG


def visible_gpus(variables: Mapping[str, str] = os.environ) -> list[VisibleGpu]:
    """What CUDA shows to a process: what CUDA_VISIBLE_DEVICES leaves, of MIG one slice.

    Where a GPU is in slices a process sees the first of them and nothing else (NVIDIA's MIG user
    guide, "Device Enumeration").
    """
    return _visible_to_a_process(
        _choose(_gpus_with_slices(), variables.get("CUDA_VISIBLE_DEVICES"))
    )


def allottable_gpus(variables: Mapping[str, str] = os.environ) -> list[VisibleGpu]:
    """Those that pieces of work can be given one by one: all of the first's kind, each slice too.

    Keys and verdicts name the first's kind, so what is measured on another would be mislabelled.
    """
    found = _choose(_gpus_with_slices(), variables.get("CUDA_VISIBLE_DEVICES"))
    kinds = [gpu.name for gpu in _visible_to_a_process(found)]
    return [gpu for gpu in found if gpu.name == kinds[0]]


def busy_gpus() -> set[str]:
    """UUIDs of GPUs on which a process computes, as far as the driver tells them here.

    Inside of a container it may tell nothing of processes outside; of one in slices it may name the
    GPU, and not which slice is used.
    """
    answer = query_driver("--query-compute-apps=gpu_uuid", "--format=csv,noheader") or ""
    return {line.strip() for line in answer.splitlines() if line.strip()}


def is_driver_too_old(driver: str) -> bool:
    """Whether the driver of that version cannot run the CUDA locks; an unknown one is not."""
    number = re.match(r"\d+", driver)
    return number is not None and int(number[0]) < MIN_DRIVER_VERSION


def query_driver(*arguments: str) -> str | None:
    """What ``nvidia-smi`` prints; None where it is missing or fails."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    try:
        answer = subprocess.run(
            [program, *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_DRIVER_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.rstrip() if answer.returncode == 0 else None


def _gpus_with_slices() -> list[list[VisibleGpu]]:
    """Each GPU of the machine: itself, or its slices."""
    lines = (query_driver("-L") or "").splitlines()
    facts = _query_rows("name,driver_version,memory.total", len(lines))
    capabilities = _query_rows("compute_cap", len(lines))
    gpus: list[VisibleGpu] = []
    slices: list[list[VisibleGpu]] = []
    for line in lines:
        if found := _GPU.match(line):
            _, driver, memory = (*facts[len(gpus)], "", "", "")[:3]
            capability = _parse_number((*capabilities[len(gpus)], "")[0])
            gpus.append(VisibleGpu(found["name"], found["uuid"], driver, memory, capability))
            slices.append([])
        elif gpus and (found := _SLICE.match(line)):
            name = f"{gpus[-1].name} MIG {found['name']}"
            slices[-1].append(
                replace(gpus[-1], name=name, uuid=found["uuid"], memory="", is_slice=True)
            )
    return [parts or [gpu] for gpu, parts in zip(gpus, slices, strict=True)]


def _choose(gpus: Sequence[Sequence[VisibleGpu]], visible: str | None) -> list[VisibleGpu]:
    """Those that CUDA_VISIBLE_DEVICES names; the first word that names none ends the list."""
    everything = [gpu for parts in gpus for gpu in parts]
    if visible is None:
        return everything
    found: list[VisibleGpu] = []
    for word in visible.split(","):
        gpu = _find_named(word.strip(), gpus, everything)
        if gpu is None:
            break
        if gpu in found:  # CUDA shows none at all then
            return []
        found.append(gpu)
    return found


def _visible_to_a_process(gpus: list[VisibleGpu]) -> list[VisibleGpu]:
    """What one process sees of them."""
    return next(([gpu] for gpu in gpus if gpu.is_slice), gpus)


def _find_named(
    word: str, gpus: Sequence[Sequence[VisibleGpu]], everything: Sequence[VisibleGpu]
) -> VisibleGpu | None:
    if word.isdecimal():
        return gpus[int(word)][0] if int(word) < len(gpus) else None
    # A UUID may be cut, as long as it names one only.
    named = [gpu for gpu in everything if word and gpu.uuid.startswith(word)]
    return named[0] if len(named) == 1 else None


def _query_rows(fields: str, count: int) -> list[tuple[str, ...]]:
    """The driver's words on each GPU in turn, then empty rows up to `most`."""
    answer = query_driver(f"--query-gpu={fields}", "--format=csv,noheader") if count else None
    rows = [tuple(re.split(r",\s*", line.strip())) for line in (answer or "").splitlines()]
    return [*rows, *[()] * count]


def _parse_number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:  # "[N/A]"
        return None
