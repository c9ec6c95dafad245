"""What a piece of work needs of the node that it runs on."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pipeline.core.record import Record


class ResourceRequest(Record):
    """The room that a stage, or a model's server with all who ask it, takes on its node."""

    gpus: int = Field(0, ge=0, description="GPUs, or slices of them, that nobody else may use")
    cpus: Literal["one", "all"] = Field(
        "one",
        description="'all': it computes on every core, as quantizing and serving on a CPU do; two "
        "such pieces of work on one node would only slow each other down",
    )
    exclusive: bool = Field(
        False, description="nothing else of ours may run on the node: it measures speed"
    )
    memory_bytes: int = Field(
        0, ge=0, description="of the node's memory, by estimate; 0: little, or nobody knows"
    )
