"""The room that stages and servers take."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.core.resource_request import ResourceRequest
from pipeline.serving.serving_arguments import ServingArguments
from pipeline.stages.quantize import QUANTIZE
from recipes.engine_arguments import count_gpus


def needs_to_make(stage: str, accelerator: str, memory_bytes: int = 0) -> ResourceRequest:
    """Return the resources of a stage without a served model."""
    if stage != QUANTIZE.name:
        return ResourceRequest(memory_bytes=memory_bytes)
    if accelerator == "cuda":
        return ResourceRequest(gpus=1, memory_bytes=memory_bytes)
    return ResourceRequest(cpus="all", memory_bytes=memory_bytes)


def needs_to_serve(
    accelerator: str,
    sides: Sequence[ServingArguments],
    *,
    exclusive: bool = False,
) -> ResourceRequest:
    """Return the resources of servers with these arguments, successive or on the same GPUs.

    Args:
        sides: at least one.
        exclusive: whether their speed is measured, on a CPU: cores are shared by all work. On GPUs
            that nothing else uses it takes these.
    """
    if accelerator != "cuda":
        return ResourceRequest(cpus="all", exclusive=exclusive)
    return ResourceRequest(gpus=max(count_gpus(side.engine_arguments) for side in sides))
