"""Hardware facts that results depend on."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path

from pydantic import Field

from prepare.errors import UsageError
from prepare.gpus import VisibleGpu, visible_gpus
from prepare.memory import memory_bytes
from prepare.record import Record, SparseRecord

CPU_FEATURES_VARIABLE = "PREPARE_CPU_FEATURES"
"""`avx2` makes a whole run behave as on a machine with no other feature: recorded facts, the
engine's kernel library, the kernels of torch and oneDNN. `none` leaves not even this one."""
_LIMITS = {
    "avx2": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    },
    "none": {
        "ATEN_CPU_CAPABILITY": "default",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
    },
}
FLAGS: dict[str, frozenset[str]] = {
    "avx2": frozenset({"avx2"}),
    # torch requires all of these before it reports AVX-512.
    "avx512f": frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl"}),
    "avx512_bf16": frozenset({"avx512_bf16"}),
    "amx": frozenset({"amx_tile"}),
}
"""Flags in /proc/cpuinfo that each feature requires, in addition to those before it."""
FEATURES = tuple(FLAGS)


def cpu_features(
    facts: str | None = None, environ: Mapping[str, str] = os.environ
) -> tuple[str, ...]:
    """Return the CPU's permitted features; `facts` is /proc/cpuinfo."""
    facts = Path("/proc/cpuinfo").read_text() if facts is None else facts
    lines = [line for line in facts.splitlines() if line.startswith("flags")]
    flags = set(lines[0].partition(":")[2].split()) if lines else set()
    features: list[str] = []
    for name, needed in FLAGS.items():
        # AMX implies AVX512_BF16 in hardware, but a virtual machine may hide any flag.
        if not needed <= flags:
            break
        features.append(name)
    limit = limiting_variables(environ).get(CPU_FEATURES_VARIABLE)
    return tuple(name for name in features if limit is None or name == limit)


def limiting_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return variables that restrict a process to the permitted features."""
    limit = environ.get(CPU_FEATURES_VARIABLE)
    if not limit:
        return {}
    if limit not in _LIMITS:
        raise UsageError(
            f"'{limit}' is not a limit of CPU features",
            where=CPU_FEATURES_VARIABLE,
            hint=f"write one of: {', '.join(_LIMITS)}",
        )
    return {CPU_FEATURES_VARIABLE: limit, **_LIMITS[limit]}


class Hardware(SparseRecord):
    """Hardware of the engine, part of the deployable tuple; unknown for an external endpoint."""

    accelerator: str | None = None
    gpu: str | None = Field(None, description="name of the first GPU, as the driver reports it")
    cpu: str | None = Field(None, description="CPU model")
    cores: int | None = Field(
        None, strict=True, ge=1, le=1_000_000, description="cores that a process may use"
    )
    cpu_features: list[str] | None = Field(None, description="None if unknown")


class NodeInfo(Record):
    """Facts of this machine."""

    name: str = Field(description="node name, for messages")
    machine: str = Field(description="identity")
    cpu: str = Field(description="CPU model")
    cores: int = Field(description="cores that work may use")
    all_cores: int = Field(description="all cores of the node")
    cpu_features: tuple[str, ...] = Field(description="in the order of FEATURES")
    cpu_limits: dict[str, str] = Field(
        description="variables that restrict work to the selected CPU features"
    )
    memory_bytes: int = Field(description="memory of the node, or of its container")
    gpus: tuple[VisibleGpu, ...] = Field(description="GPUs that CUDA shows")
    visible_devices: str | None = Field(description="CUDA_VISIBLE_DEVICES")

    @property
    def gpu_name(self) -> str | None:
        """Name of the first GPU."""
        return self.gpus[0].name if self.gpus else None

    def hardware(self, accelerator: str) -> Hardware:
        if accelerator == "cuda":
            return Hardware(accelerator=accelerator, gpu=self.gpu_name or "not found")
        return Hardware(
            accelerator=accelerator,
            cpu=self.cpu,
            cores=self.cores,
            cpu_features=list(self.cpu_features),
        )

    def kind(self, accelerator: str) -> str:
        gpu = [self.gpu_name or "no GPU"] if accelerator == "cuda" else []
        return ", ".join([*gpu, self.cpu, f"{self.all_cores} cores"])


def this_node(variables: Mapping[str, str] = os.environ, *, with_gpus: bool = True) -> NodeInfo:
    """Return this machine's facts; querying the driver is slow."""
    return NodeInfo(
        name=platform.node(),
        machine=_machine(),
        cpu=_cpu_model(),
        cores=len(os.sched_getaffinity(0)),
        all_cores=os.cpu_count() or 1,
        cpu_features=cpu_features(environ=variables),
        cpu_limits=limiting_variables(variables),
        memory_bytes=memory_bytes(),
        gpus=tuple(visible_gpus(variables)) if with_gpus else (),
        visible_devices=variables.get("CUDA_VISIBLE_DEVICES"),
    )


def hardware(accelerator: str) -> Hardware:
    """Return the engine's hardware on this machine."""
    return this_node(with_gpus=accelerator == "cuda").hardware(accelerator)


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return ""


def _machine() -> str:
    try:
        return Path("/etc/machine-id").read_text().strip() or platform.node()
    except OSError:
        return platform.node()
