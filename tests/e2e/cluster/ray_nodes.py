"""A real Ray cluster on this machine, told of GPUs that are none."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from store_processes import parent_of

STORE_BYTES = 80 * 2**20
CLONE_FS, CLONE_NEWNS = 0x00000200, 0x00020000  # of sched.h


class RayNodes:
    """A head without room for work, and nodes that are told of two cores and two GPUs each.

    Args:
        count: of the nodes.
        own: a folder that each node is to see as a separate one, as nodes of a real cluster do
            that share no file system; needs root.
        cpus: that each is told of.
        gpus: likewise.
        driver: folder of the nodes' own `nvidia-smi`, of H100s, which our PATH does not have.
    """

    def __init__(
        self,
        count: int,
        own: Path | None = None,
        *,
        cpus: int = 2,
        gpus: int = 2,
        driver: Path | None = None,
    ) -> None:
        os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
        from ray.cluster_utils import Cluster

        self._cluster = Cluster(
            initialize_head=True,
            head_node_args={"num_cpus": 0, "num_gpus": 0, "object_store_memory": STORE_BYTES},
        )
        self._own, self._cpus, self._gpus = own, cpus, gpus
        self._of_gpus: dict[str, Any] = {}
        if driver is not None:
            self._of_gpus = {
                "resources": {"accelerator_type:H100": 1},
                "env_vars": {"PATH": f"{driver}:{os.environ['PATH']}"},
            }
        self._added = 0
        self._nodes: dict[str, Any] = {}
        self.address = str(self._cluster.address)
        for _ in range(count):
            self.add()

    def add(self, **of_node: Any) -> str:
        """Another node, with what Ray is told of it alone; its name."""
        with self._own_folder():
            node = self._cluster.add_node(
                num_cpus=self._cpus,
                num_gpus=self._gpus,
                object_store_memory=STORE_BYTES,
                **self._of_gpus | of_node,
            )
        self._nodes[node.node_id] = node
        self._added += 1
        return str(node.node_id)

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
            process = parent_of(process)
        return raylets[process]

    def busy(self) -> list[str]:
        """The nodes on which something is reserved; of a driver that is connected."""
        import ray

        free = ray._private.state.available_resources_per_node()
        return [name for name in self._nodes if free[name].get("CPU", 0) < self._cpus]

    def kill_head(self) -> None:
        """End what the cluster's head is with SIGKILL."""
        for each in self._cluster.head_node.all_processes["gcs_server"]:
            each.process.kill()

    def close(self) -> None:
        """End everything."""
        import ray

        ray.shutdown()
        self.end_processes()

    def end_processes(self) -> None:
        """End the cluster; we may be connected to another."""
        self._cluster.shutdown()

    @contextmanager
    def _own_folder(self) -> Iterator[None]:
        """Processes that are started meanwhile see a separate folder in its place."""
        if self._own is None:
            yield
            return
        other = self._own.with_name(f"{self._own.name}-{self._added}")
        other.mkdir()
        here, library = Path.cwd(), ctypes.CDLL(None, use_errno=True)
        with Path("/proc/thread-self/ns/mnt").open() as before:
            if library.unshare(CLONE_NEWNS):
                raise OSError(ctypes.get_errno(), "unshare")
            try:
                for command in (["--make-rprivate", "/"], ["--bind", str(other), str(self._own)]):
                    subprocess.run(["mount", *command], check=True)
                yield
            finally:
                # Threads that were begun meanwhile share with us what is to be changed.
                if library.unshare(CLONE_FS) or library.setns(before.fileno(), CLONE_NEWNS):
                    raise OSError(ctypes.get_errno(), "setns")
                os.chdir(here)
