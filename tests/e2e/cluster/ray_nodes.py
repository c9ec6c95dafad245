"""A real Ray cluster on this machine, told of GPUs that are none."""

from __future__ import annotations

import ctypes
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

STORE_BYTES = 80 * 2**20
CLONE_NEWNS = 0x00020000  # of sched.h


class RayNodes:
    """A head without room for work, and nodes that are told of two cores and two GPUs each.

    Args:
        count: of the nodes.
        own: a folder of which each node is to see one of its own, as nodes of a real cluster do
            that share no file system; needs root.
        cpus: that each is told of.
        gpus: likewise.
    """

    def __init__(
        self, count: int, own: Path | None = None, *, cpus: int = 2, gpus: int = 2
    ) -> None:
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        from ray.cluster_utils import Cluster

        self._cluster = Cluster(
            initialize_head=True,
            head_node_args={"num_cpus": 0, "num_gpus": 0, "object_store_memory": STORE_BYTES},
        )
        self._own, self._cpus, self._gpus = own, cpus, gpus
        self._added = 0
        self._nodes: dict[str, Any] = {}
        self.address = str(self._cluster.address)
        for _ in range(count):
            self.add()

    def add(self) -> None:
        """Another node."""
        with ThreadPoolExecutor(1) as thread:  # which may see another file system than the others
            if self._own is not None:
                other = self._own.with_name(f"{self._own.name}-{self._added}")
                thread.submit(_hide, self._own, other).result()
            node = thread.submit(
                self._cluster.add_node,
                num_cpus=self._cpus,
                num_gpus=self._gpus,
                object_store_memory=STORE_BYTES,
            ).result()
        self._nodes[node.node_id] = node
        self._added += 1

    def kill(self, name: str) -> None:
        """End the node's processes with SIGKILL."""
        self._cluster.remove_node(self._nodes.pop(name), allow_graceful=False)

    def raylets(self) -> dict[int, str]:
        """The process that stands for each node, and the node's name."""
        return {
            each.process.pid: name
            for name, node in self._nodes.items()
            for each in node.all_processes["raylet"]
        }

    def node_above(self, process: int) -> str:
        """The node on which the process runs."""
        raylets = self.raylets()
        while process not in raylets:
            process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
        return raylets[process]

    def busy(self) -> list[str]:
        """The nodes on which something is reserved; of a driver that is connected."""
        import ray

        free = ray._private.state.available_resources_per_node()
        return [name for name in self._nodes if free[name].get("CPU", 0) < self._cpus]

    def close(self) -> None:
        """End everything."""
        import ray

        ray.shutdown()
        self._cluster.shutdown()


def _hide(folder: Path, other: Path) -> None:
    """Have what this thread starts see the other folder in that one's place."""
    other.mkdir()
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), "unshare")
    for command in (["--make-rprivate", "/"], ["--bind", str(other), str(folder)]):
        subprocess.run(["mount", *command], check=True)
