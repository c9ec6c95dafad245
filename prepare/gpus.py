"""NVIDIA GPUs that a child process can use."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

MIN_DRIVER_VERSION = 580
"""CUDA 13, which the CUDA locks install, does not run on older drivers."""

_DRIVER_TIMEOUT_S = 30
_GPU = re.compile(r"GPU \d+: (?P<name>.+) \(UUID: (?P<uuid>\S+)\)")
_SLICE = re.compile(r"\s+MIG (?P<name>\S+)\s+Device\s+\d+: \(UUID: (?P<uuid>\S+)\)")


@dataclass(frozen=True)
class VisibleGpu:
    """A GPU, or a MIG slice of one."""

    name: str  # as the driver reports it; for a slice followed by its kind, "MIG 3g.40gb"
    uuid: str  # valid in CUDA_VISIBLE_DEVICES
    driver: str = ""  # driver version; empty if unknown
    memory: str = ""  # total, as the driver formats it; empty if unknown
    compute_capability: float | None = None  # such as 9.0; None if unknown
    is_slice: bool = False

    @property
    def memory_gib(self) -> float | None:
        """Total memory in GiB; None if unknown.

        A slice has an upper limit in its name, "MIG 3g.40gb".
        """
        mebibytes = re.fullmatch(r"(\d+) MiB", self.memory)
        if mebibytes:
            return int(mebibytes[1]) / 1024
        of_slice = re.search(r"\bMIG \d+\S*\.(\d+)gb\b", self.name)
        return float(of_slice[1]) if of_slice else None


def visible_gpus(variables: Mapping[str, str] = os.environ) -> list[VisibleGpu]:
    """Return the GPUs that CUDA shows to a process.

    That is only the first MIG slice (NVIDIA MIG user guide, "Device Enumeration").
    """
    return _visible_to_a_process(
        _choose(_gpus_with_slices(), variables.get("CUDA_VISIBLE_DEVICES"))
    )


def allottable_gpus(variables: Mapping[str, str] = os.environ) -> list[VisibleGpu]:
    """Return the usable GPUs and MIG slices, all of one kind.

    Keys and verdicts contain the kind.
    """
    chosen = _choose(_gpus_with_slices(), variables.get("CUDA_VISIBLE_DEVICES"))
    kinds = [gpu.name for gpu in _visible_to_a_process(chosen)]
    return [gpu for gpu in chosen if gpu.name == kinds[0]]


def busy_gpus() -> set[str]:
    """Return UUIDs of GPUs with a compute process.

    A container may hide outside processes; MIG may show the whole GPU.
    """
    answer = query_driver("--query-compute-apps=gpu_uuid", "--format=csv,noheader") or ""
    return {line.strip() for line in answer.splitlines() if line.strip()}


def is_driver_too_old(driver: str) -> bool:
    """Return whether the driver is too old for the CUDA locks."""
    number = re.match(r"\d+", driver)
    return number is not None and int(number[0]) < MIN_DRIVER_VERSION


def query_driver(*arguments: str) -> str | None:
    """Run ``nvidia-smi``; return None on failure."""
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
    lines = (query_driver("-L") or "").splitlines()
    fields = "--query-gpu=driver_version,memory.total,compute_cap"
    answer = query_driver(fields, "--format=csv,noheader") if lines else None
    facts = [re.split(r",\s*", line.strip()) for line in (answer or "").splitlines()]
    gpus: list[VisibleGpu] = []
    slices: list[list[VisibleGpu]] = []
    for line in lines:
        if match := _GPU.match(line):
            known = facts[len(gpus)] if len(gpus) < len(facts) else ["", "", ""]
            capability = float(known[2]) if re.fullmatch(r"\d+\.\d+", known[2]) else None
            gpus.append(VisibleGpu(match["name"], match["uuid"], known[0], known[1], capability))
            slices.append([])
        elif gpus and (match := _SLICE.match(line)):
            name = f"{gpus[-1].name} MIG {match['name']}"
            slices[-1].append(
                replace(gpus[-1], name=name, uuid=match["uuid"], memory="", is_slice=True)
            )
    return [parts or [gpu] for gpu, parts in zip(gpus, slices, strict=True)]


def _choose(gpus: Sequence[Sequence[VisibleGpu]], visible: str | None) -> list[VisibleGpu]:
    """Apply CUDA_VISIBLE_DEVICES; an invalid entry ends the list."""
    everything = [gpu for parts in gpus for gpu in parts]
    if visible is None:
        return everything
    chosen: list[VisibleGpu] = []
    for word in visible.split(","):
        gpu = _find_named(word.strip(), gpus, everything)
        if gpu is None:
            break
        if gpu in chosen:  # CUDA then shows no GPU
            return []
        chosen.append(gpu)
    return chosen


def _visible_to_a_process(gpus: list[VisibleGpu]) -> list[VisibleGpu]:
    return next(([gpu] for gpu in gpus if gpu.is_slice), gpus)


def _find_named(
    word: str, gpus: Sequence[Sequence[VisibleGpu]], everything: Sequence[VisibleGpu]
) -> VisibleGpu | None:
    if word.isdecimal():
        return gpus[int(word)][0] if int(word) < len(gpus) else None
    # A unique prefix of a UUID is valid.
    named = [gpu for gpu in everything if word and gpu.uuid.startswith(word)]
    return named[0] if len(named) == 1 else None


MIN_SHARE = 0.01
"""Share of the time from which on a slowdown counts."""
# `nvidia-smi -q -x`, drivers 575 and later.
_ENTRY = re.compile(r"<gpu id=.*?</gpu>", re.DOTALL)
_UUID = re.compile(r"<uuid>(\S+)</uuid>")
_SLOWED = re.compile(r"<clocks_event_reasons_counters_(\w+)>(\d+) us<")
_PROCESS = re.compile(r"<pid>(\d+)</pid>\s*<type>[^<]*C[^<]*</type>")
_REASONS = {
    "sw_therm": "slowed down by heat",
    "hw_therm": "slowed down by heat, in hardware",
    "hw_power": "slowed down by a power brake",
}
_CAPPED = "sw_power"


@dataclass(frozen=True)
class GpuState:
    """One GPU at one moment."""

    uuid: str
    slowed_us: dict[str, int]  # since the driver was loaded, by the first 8 letters of the reason
    processes: frozenset[str]  # that compute, if the driver shows them


def gpu_states(uuids: Sequence[str]) -> list[GpuState]:
    """Return the GPUs' states, as far as reported."""
    answer = query_driver("-q", "-x", "-i", ",".join(uuids)) if uuids else None
    return [
        GpuState(
            uuid[1],
            {name[:8]: int(us) for name, us in _SLOWED.findall(part)},
            frozenset(_PROCESS.findall(part)),
        )
        for part in _ENTRY.findall(answer or "")
        if (uuid := _UUID.search(part))
    ]


def disturbances(
    before: Sequence[GpuState], after: Sequence[GpuState], seconds: float
) -> Iterator[dict[str, str]]:
    """Yield what happened, as fields of `Interference`."""
    then = {state.uuid: state for state in before}
    for now in after:
        if (was := then.get(now.uuid)) is None:
            continue
        grown = {name: us - was.slowed_us.get(name, us) for name, us in now.slowed_us.items()}
        for name, words in _REASONS.items():
            share = grown.get(name, 0) / 1e6 / max(seconds, 1e-3)
            # Some drivers count a power limit as heat.
            if share > MIN_SHARE and grown[name] != grown.get(_CAPPED):
                what = f"{now.uuid} was {words} for {100 * min(share, 1.0):.0f} % of the time"
                yield {"kind": "throttled", "what": what}
        if new := sorted(now.processes - was.processes):
            what = f"process {', '.join(new)} began to use {now.uuid}"
            yield {"kind": "other_process", "what": what[:300]}
