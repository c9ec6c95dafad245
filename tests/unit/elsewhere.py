"""An executor whose nodes are not the machine that the tests run on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from some_node import node_of

from pipeline.core.hardware import NodeInfo
from pipeline.core.resource_request import ResourceRequest

H100 = node_of({"gpu": "NVIDIA H100 80GB HBM3"}).model_copy(update={"machine": "", "name": "gpu7"})


@dataclass
class Elsewhere:
    """Tells of the node; runs nothing."""

    has_our_environments = False
    node: NodeInfo
    asked: list[list[ResourceRequest]] = field(default_factory=list)

    def describe_node(
        self, asked: Sequence[ResourceRequest], store: Path, listener: Any
    ) -> NodeInfo:
        """It, and remember for what."""
        self.asked.append(list(asked))
        return self.node

    def count_room(self, needs: ResourceRequest) -> int:
        """One."""
        return 1
