"""Runs work on the nodes of a Ray cluster, each piece as a guarded child of an agent of ours there.

What a piece of work takes, and the agents, are in ray_cluster.py; how it is done and begun anew in
ray_job.py; the parts of a server that is spread over several nodes in ray_parts.py.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from pipeline.core.errors import StageError, UsageError
from pipeline.core.hardware import NodeFacts
from pipeline.core.installation import this_prepare
from pipeline.core.needs import Needs
from pipeline.core.process_environment import travelling_environment
from pipeline.run.executors.executor import Listener, Options
from pipeline.run.executors.ray_cluster import SECONDS_TO_DESCRIBE, RayCluster
from pipeline.run.executors.ray_connection import connect
from pipeline.run.executors.ray_head import RayHead
from pipeline.run.executors.ray_job import HowBegun, RayPlace, words_of_loss
from pipeline.run.executors.ray_logs import KeptLogs
from pipeline.run.executors.resources import Resources, count_room, most_frequent, words_of


class RayOptions(Options):
    """Work is done on the nodes of a Ray cluster."""

    kind: Literal["ray"] = Field("ray", description="a Ray cluster")
    address: str = Field(
        "auto",
        description="HOST:PORT of the head, as `ray start --head` prints it; 'auto': of "
        "$RAY_ADDRESS, or of the cluster that this machine is a node of",
    )
    home: Path | None = Field(
        None,
        description="folder of the managed environments on each node; without it, where the "
        "node's own settings have it",
    )
    tries: int = Field(
        3, ge=1, description="how often a piece of work is begun when its node is lost"
    )

    @field_validator("address")
    @classmethod
    def _is_no_client(cls, address: str) -> str:
        if "://" in address:
            raise ValueError("events cannot be streamed through Ray's client: give HOST:PORT")
        return address

    def open(self) -> RayExecutor:
        """The executor; raises UsageError where ray is missing or no cluster answers."""
        return RayExecutor(self, connect(self.address))


class RayExecutor:
    """The executor of a Ray cluster; see executor.py."""

    has_our_environments = False

    def __init__(self, options: RayOptions, head: RayHead) -> None:
        self._cluster = RayCluster(head, f"executor ray, address {options.address}")
        self._begun = HowBegun(options.tries, options.home, KeptLogs())

    def find_room(self, needs: Needs) -> RayPlace:
        """A place in the cluster's queue.

        Raises:
            UsageError: no node of the cluster has as much.
            StageError: the cluster's head is gone.
        """
        node = self._node_for(needs)
        self._cluster.drop_unwanted()
        return RayPlace(needs, node.taken_by(needs), self._cluster, self._begun)

    def obstacle(self) -> str:
        """There is always a place in the queue."""
        return "room on the Ray cluster"

    def count_room(self, needs: Needs) -> int:
        """How many such pieces of work could run side by side if nothing else ran."""
        return count_room(self._cluster.nodes().values(), needs)

    def describe_node(self, asked: Sequence[Needs], store: Path, listener: Listener) -> NodeFacts:
        """What one of the nodes says of itself on which such work is done; takes none of its room.

        Raises:
            UsageError: no node of the cluster has as much.
            StageError: none of those that have answers.
        """
        import ray
        from ray.exceptions import RayError

        nodes = self._cluster.nodes()
        needs = next((each for each in asked if most_frequent(nodes.values(), each)), asked[-1])
        kind, why = self._node_for(needs), "it was lost"
        for node in (name for name, resources in nodes.items() if resources == kind):
            agent = self._cluster.agent_on(node)
            given = travelling_environment(os.environ, "")
            answer = agent.describe.remote(this_prepare(), given)
            try:
                told = ray.get(answer, timeout=SECONDS_TO_DESCRIBE)
            except (RayError, TimeoutError) as error:
                self._cluster.forget(node, agent)
                why = words_of_loss(error)
                continue
            return NodeFacts.model_validate_json(told).model_copy(update={"machine": ""})
        raise StageError(
            f"no node of the Ray cluster says what it is: {why}",
            where=self._cluster.words,
            cure="every node has to have this prepare installed, of the same commit",
        )

    def _node_for(self, needs: Needs) -> Resources:
        """Of the kinds of node that have as much the most frequent; raises UsageError."""
        node = most_frequent(self._cluster.nodes().values(), needs)
        if node is None:
            raise UsageError(
                f"no node of the Ray cluster has {words_of(needs)}",
                where=self._cluster.words,
                cure="choose a profile for fewer GPUs, spread it over several nodes "
                "(engine_arguments.nnodes), or add such a node: `ray status` lists them",
            )
        return node
