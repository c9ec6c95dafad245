"""What a machine is, as far as plans, verdicts and claims on speed depend on it."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path

from pydantic import Field

from pipeline.core.cpu_features import cpu_features, limiting_variables
from pipeline.core.gpus import VisibleGpu, visible_gpus
from pipeline.core.memory import memory_bytes
from pipeline.core.record import Record, SparseRecord


class Hardware(SparseRecord):
    """What the engine runs on, a member of the deployable tuple; of somebody's endpoint nothing."""

    accelerator: str | None = None
    gpu: str | None = Field(None, description="name of the first, as the driver gives it")
    cpu: str | None = Field(None, description="the processor's model")
    cores: int | None = Field(
        None, strict=True, ge=1, le=1_000_000, description="that a process may use"
    )
    cpu_features: list[str] | None = Field(None, description="None where nobody looked")


class NodeInfo(Record):
    """What a node says of itself: this machine, or one of a cluster that is to serve."""

    name: str = Field(description="of the node, for messages")
    machine: str = Field(
        description="which one it is; '' of a cluster, where any node of the kind may serve"
    )
    cpu: str = Field(description="model of the processor")
    cores: int = Field(description="that work there may use")
    all_cores: int = Field(description="of the node, whoever may use them")
    cpu_features: tuple[str, ...] = Field(description="see cpu_features.py")
    cpu_limits: dict[str, str] = Field(
        description="variables of work that is to do with fewer features than the CPU has"
    )
    memory_bytes: int = Field(description="of the node, or what its container may use")
    gpus: tuple[VisibleGpu, ...] = Field(description="that CUDA shows")
    visible_devices: str | None = Field(description="what hides others from CUDA")

    @property
    def gpu_name(self) -> str | None:
        """Name of the first GPU, as the driver gives it; None without."""
        return self.gpus[0].name if self.gpus else None

    def hardware(self, accelerator: str) -> Hardware:
        """What the engine would run on there."""
        if accelerator == "cuda":
            return Hardware(accelerator=accelerator, gpu=self.gpu_name or "not found")
        return Hardware(
            accelerator=accelerator,
            cpu=self.cpu,
            cores=self.cores,
            cpu_features=list(self.cpu_features),
        )

    def kind(self, accelerator: str) -> str:
        """In words, what nodes have in common whose speeds may be taken for each other's."""
        gpu = [self.gpu_name or "no GPU"] if accelerator == "cuda" else []
        return ", ".join([*gpu, self.cpu, f"{self.all_cores} cores"])

    def measured_on(self, accelerator: str) -> str:
        """What speeds are kept for: those of two machines, or kinds of node, are not compared."""
        return self.machine or self.kind(accelerator)


def this_node(variables: Mapping[str, str] = os.environ, *, with_gpus: bool = True) -> NodeInfo:
    """Look at the machine that we run on, as a process with these variables would.

    Args:
        with_gpus: ask the driver, which is slow.

    Raises:
        UsageError: a variable limits the CPU to features that it does not have.
    """
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
    """What the engine would run on here."""
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
