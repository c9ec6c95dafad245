"""Resources that a work item requests on its node."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pipeline.core.record import Record


class ResourceRequest(Record):
    """Resources of a stage, or of a model server with its clients."""

    gpus: int = Field(0, ge=0, description="GPUs or MIG slices, for exclusive use")
    cpus: Literal["one", "all"] = Field(
        "one",
        description="'all': it uses every core, as CPU quantization and CPU serving do; two such "
        "work items on one node would slow each other down",
    )
    exclusive: bool = Field(
        False, description="no other work item of prepare may run on the node: it measures speed"
    )
    memory_bytes: int = Field(0, ge=0, description="estimated node memory; 0: little or unknown")
