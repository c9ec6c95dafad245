"""Resources of a cluster's nodes, and of work items."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from pipeline.core.resource_request import ResourceRequest


@dataclass(frozen=True)
class Resources:
    """Resources of a node, or of a work item."""

    cpus: float
    gpus: float
    gpu_kind: str = ""  # as the cluster calls it; "" where it does not say, or it does not matter
    # That differs a little between nodes of one kind; 0 where the cluster does not count it.
    memory_bytes: float = field(default=0, compare=False)

    def holds(self, needs: ResourceRequest) -> bool:
        return self.cpus >= 1 and self.gpus >= needs.gpus  # of each node

    def taken_by(self, needs: ResourceRequest) -> Resources:
        if needs.exclusive:
            return replace(self, memory_bytes=0)
        cpus = self.cpus if needs.cpus == "all" else 1
        # An estimate, which what a cluster gives away of a node may fall short of.
        memory = min(needs.memory_bytes, self.memory_bytes)
        return Resources(cpus, needs.gpus, self.gpu_kind if needs.gpus else "", memory)

    def count(self, part: Resources) -> int:
        times = [self.cpus // part.cpus, *([self.gpus // part.gpus] if part.gpus else [])]
        times += [self.memory_bytes // part.memory_bytes] if part.memory_bytes else []
        return int(min(times))


def count_room(nodes: Iterable[Resources], needs: ResourceRequest) -> int:
    """Return how many such work items could run concurrently on idle nodes."""
    return sum(node.count(node.taken_by(needs)) for node in nodes if node.holds(needs))


def most_frequent(nodes: Iterable[Resources], needs: ResourceRequest) -> Resources | None:
    """Return the most frequent kind of nodes that have as much; None if there is none.

    Comparable measurements need nodes of one kind.
    """
    found = Counter(node for node in nodes if node.holds(needs)).most_common(1)
    return found[0][0] if found else None


def words_of(needs: ResourceRequest) -> str:
    """Describe the resources for a message."""
    gpus = {0: "a core", 1: "1 GPU"}.get(needs.gpus, f"{needs.gpus} GPUs")
    if needs.exclusive:
        return "a separate node" + f" with {gpus}" * bool(needs.gpus)
    memory = f" and {needs.memory_bytes / 1e9:.1f} GB of memory" * bool(needs.memory_bytes)
    cores = "all cores of a node" if needs.cpus == "all" and not needs.gpus else gpus
    return cores + memory
