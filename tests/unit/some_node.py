"""A node that tests plan runs for, on any machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prepare.gpus import VisibleGpu
from prepare.hardware import FEATURES, NodeInfo

NODE = NodeInfo(
    name="n1",
    machine="m1",
    cpu="A CPU of no machine",
    cores=2,
    all_cores=2,
    cpu_features=FEATURES,
    cpu_limits={},
    memory_bytes=2**34,
    gpus=(),
    visible_devices=None,
)


def node_of(hardware: Mapping[str, Any]) -> NodeInfo:
    """One whose hardware is that."""
    facts = {name: value for name, value in hardware.items() if name not in ("accelerator", "gpu")}
    gpus = [VisibleGpu(hardware["gpu"], "GPU-1")] if "gpu" in hardware else []
    return NodeInfo.model_validate({**NODE.model_dump(), **facts, "gpus": gpus})
