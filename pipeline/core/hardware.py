"""Hardware facts that results depend on."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path

from pydantic import Field

from pipeline.core.errors import UsageError
from pipeline.core.gpus import VisibleGpu, visible_gpus
from pipeline.core.memory import memory_bytes
from pipeline.core.record import Record, SparseRecord

CPU_FEATURES_VARIABLE = "PREPARE_CPU_FEATURES"
"""`avx2` makes a whole run behave as on a machine with no other feature: recorded facts, the
engine's kernel library, the kernels of torch and oneDNN."""
NO_FEATURES = "none"
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
    """Return the CPU's permitted features."""
    flags = parse_flags(Path("/proc/cpuinfo").read_text() if facts is None else facts)
    found: list[str] = []
    for name, needed in FLAGS.items():
        # AMX implies AVX512_BF16 in hardware, but a virtual machine may hide any flag.
        if not needed <= flags:
            break
        found.append(name)
    wanted = requested_features(environ)
    if wanted is None:
        return tuple(found)
    if lacking := [name for name in wanted if name not in found]:
        raise UsageError(
            f"this CPU has no {lacking[0]}",
            where=CPU_FEATURES_VARIABLE,
            hint=f"use features from: {', '.join(found) or NO_FEATURES}",
        )
    return wanted


def limiting_variables(
    facts: str | None = None, environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return variables that restrict a process to these features."""
    wanted = requested_features(environ)
    if wanted is None or wanted == cpu_features(facts, {}):
        return {}
    limits = {CPU_FEATURES_VARIABLE: ",".join(wanted) or NO_FEATURES}
    if "avx512f" not in wanted:
        return {
            **limits,
            "ATEN_CPU_CAPABILITY": "avx2" if wanted else "default",
            "ONEDNN_MAX_CPU_ISA": "AVX2" if wanted else "SSE41",
            "MKL_ENABLE_INSTRUCTIONS": "AVX2" if wanted else "SSE4_2",
        }
    with_bf16 = "avx512_bf16" in wanted
    return {**limits, "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16" if with_bf16 else "AVX512_CORE"}


def requested_features(environ: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return the requested features; None if unset."""
    text = environ.get(CPU_FEATURES_VARIABLE, "").strip()
    if not text:
        return None
    words = {word.strip() for word in text.split(",")} - {NO_FEATURES}
    wanted = tuple(name for name in FEATURES if name in words)
    if words - set(FEATURES) or wanted != FEATURES[: len(wanted)]:
        lists = [",".join(FEATURES[:length]) for length in range(1, len(FEATURES) + 1)]
        raise UsageError(
            f"'{text}' is not a list of CPU features",
            where=CPU_FEATURES_VARIABLE,
            hint=f"write one of: {NO_FEATURES}; {'; '.join(lists)}",
        )
    return wanted


def parse_flags(facts: str) -> frozenset[str]:
    """Return the first CPU's flags; `facts` is /proc/cpuinfo."""
    for line in facts.splitlines():
        if line.startswith("flags"):
            return frozenset(line.partition(":")[2].split())
    return frozenset()


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
    """Facts of this machine, or of a cluster's serving node."""

    name: str = Field(description="node name, for messages")
    machine: str = Field(
        description="identity; '' for a cluster, where any node of the kind may serve"
    )
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

    def measured_on(self, accelerator: str) -> str:
        return self.machine or self.kind(accelerator)


def this_node(variables: Mapping[str, str] = os.environ, *, with_gpus: bool = True) -> NodeInfo:
    """Return this machine's facts; querying the driver is slow."""
    return NodeInfo(
        name=platform.node(),
        machine=_machine(),
        cpu=_cpu_model(),
        cores=len(os.sched_getaffinity(0)),
        all_cores=os.cpu_count() or 1,
        cpu_features=cpu_features(environ=variables),
        cpu_limits=limiting_variables(environ=variables),
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
