"""A Ray cluster as its driver has it: the nodes, our agents on them, and the room that is taken.

What is reserved is a placement group of one bundle, which Ray puts on one node, or of a bundle for
each of several.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pipeline.core.errors import StageError
from pipeline.run.executors.ray_head import RayHead
from pipeline.run.executors.ray_node import NodeAgent
from pipeline.run.executors.ray_parts import LostNodeError
from pipeline.run.executors.resources import Resources

SECONDS_BETWEEN_KNOCKS = 5.0
SECONDS_KEPT = 0.5
SECONDS_TO_DESCRIBE = 60.0  # a worker has to start there
KIND = "accelerator_type:"  # before the kind of a node's GPUs, of which a node has 1
SHARE_OF_KIND = 0.001  # as Ray itself takes of it
CONTROL = "control"  # of an agent's threads those that do no work
Bundles = list[dict[str, float]]


@dataclass(eq=False)
class Room:
    """On one node, or on several, reserved together.

    Attributes:
        bundles: what is taken of each.
        group: Ray's own; another's may take its place until it is reserved.
    """

    bundles: Bundles
    group: Any

    def node(self, number: int) -> str:
        """Where it is, once it is reserved; of several nodes the one of that number."""
        return str(self._look()["bundles_to_node_id"][number])

    def is_moving(self) -> bool:
        """Whether room on another node is looked for, in place of that on one that was lost."""
        return bool(self._look()["state"] == "RESCHEDULING")

    def _look(self) -> dict[str, Any]:
        from ray.util.placement_group import placement_group_table

        return dict(placement_group_table(self.group))


class RayCluster:
    """The nodes, and our agents there, each made when it is first wanted; for several threads.

    A process has one, as every command has one executor. Of two, one would wait for the room that
    the other keeps for its own next work, and gives to Ray only when it looks for room again. That
    is not done by a clock: a call to Ray that comes when somebody has shut it down starts another.

    Args:
        words: that name it in an error.
    """

    def __init__(self, head: RayHead, words: str) -> None:
        self.head = head
        self.words = words
        self._knocked = time.monotonic()
        self._agents: dict[str, Any] = {}
        self._waiting: list[Room] = []
        self._kept: list[tuple[Room, float]] = []  # what was given back, and when
        self._changing = threading.Lock()
        self._asking_gpus: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    def nodes(self) -> dict[str, Resources]:
        """What each that is alive has, by its name; raises StageError when the head is gone."""
        import ray

        self.head.check()
        return {
            str(node["NodeID"]): resources_of(node["Resources"])
            for node in ray.nodes()
            if node["Alive"]
        }

    def knock(self) -> None:
        """Look every now and then whether the head is there; raises StageError when it is gone."""
        if time.monotonic() - self._knocked >= SECONDS_BETWEEN_KNOCKS:
            self.head.check()
            self._knocked = time.monotonic()

    def agent_on(self, node: str) -> Any:
        """Our agent there, a handle of Ray's to a NodeAgent; raises LostNodeError."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        with self._changing:
            if node not in self._agents:
                if (has := self.nodes().get(node)) is None:
                    raise LostNodeError("its node was lost")
                where = NodeAffinitySchedulingStrategy(node, soft=False)
                agents: Any = ray.remote(num_cpus=0, concurrency_groups={CONTROL: 4})  # type: ignore[call-overload]
                self._agents[node] = (
                    agents(NodeAgent)
                    .options(
                        max_concurrency=max(1, int(has.cpus)),
                        scheduling_strategy=where,
                    )
                    .remote()
                )
                if has.gpus:  # have a worker there, too, that `gpus_of` finds started
                    ask = ray.remote(ray.get_gpu_ids)
                    ask.options(num_cpus=0, max_retries=0, scheduling_strategy=where).remote()
            return self._agents[node]

    def forget(self, node: str, agent: Any) -> None:
        """That agent is gone; the next who wants one there makes another."""
        with self._changing:
            if self._agents.get(node) is agent:
                del self._agents[node]

    def take(self, bundles: Bundles) -> Room:
        """Room that was just given back, or else such as Ray will reserve."""
        from ray.util.placement_group import placement_group

        with self._changing:
            for number, (room, _) in enumerate(self._kept):
                if room.bundles == bundles:
                    del self._kept[number]
                    return room
        strategy = "STRICT_PACK" if len(bundles) == 1 else "STRICT_SPREAD"
        return Room(bundles, placement_group(bundles, strategy=strategy))

    def wait(self, room: Room, is_ready: Callable[[Any], bool]) -> None:
        """Wait until the room is reserved, be it in place of another's that is released meanwhile.

        Args:
            is_ready: waits for a reference, for a moment.
        """
        with self._changing:
            self._waiting.append(room)
        try:
            while True:
                group = room.group
                ready = group.ready()  # also when it is removed
                while not is_ready(ready):
                    pass
                with self._changing:
                    if room.group is group:
                        return
        finally:
            with self._changing:
                self._waiting = [each for each in self._waiting if each is not room]

    def give_back(self, room: Room) -> None:
        """Let who needs such room have it, now or in a moment; else Ray, which takes a second."""
        with self._changing:
            for other in self._waiting:
                if other.bundles == room.bundles:
                    other.group, room.group = room.group, other.group
                    self._waiting.remove(other)
                    break
            else:
                self._kept.append((room, time.monotonic()))
                return
        self._remove(room)  # that the other one has waited for in vain

    def drop_unwanted(self) -> None:
        """Give Ray the room that nobody has taken; called often while work is waited for."""
        with self._changing:
            until = time.monotonic() - SECONDS_KEPT
            unwanted = [room for room, since in self._kept if since < until]
            self._kept = [kept for kept in self._kept if kept[1] >= until]
        for room in unwanted:
            self._remove(room)

    def _remove(self, room: Room) -> None:
        """Have Ray give the room to others; with its head the cluster ends, and all room in it."""
        from ray.util.placement_group import remove_placement_group

        with suppress(StageError):
            self.head.check()
            remove_placement_group(room.group)

    def gpus_of(self, room: Room, number: int, node: str, count: int) -> Any:
        """A reference to the GPUs that are reserved there, as CUDA_VISIBLE_DEVICES lists them.

        They are its own until it is given back, whatever else runs.

        Args:
            number: of the room's bundle that is there.
        """
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        ask = ray.remote(ray.get_gpu_ids).options(  # none of ours, whose import takes longer
            num_cpus=0,
            num_gpus=count,
            max_retries=0,
            scheduling_strategy=PlacementGroupSchedulingStrategy(room.group, number),
        )
        with self._asking_gpus[node]:  # one worker answers all, one after another
            answer = ask.remote()
            ray.wait([answer], timeout=SECONDS_TO_DESCRIBE)
        return answer


def bundles_of(taken: Resources, nodes: int) -> Bundles:
    """What Ray is asked for, of each of so many nodes."""
    resources = {"CPU": taken.cpus, "GPU": taken.gpus, "memory": int(taken.memory_bytes)}
    if taken.gpu_kind:
        resources[KIND + taken.gpu_kind] = SHARE_OF_KIND
    return [{name: count for name, count in resources.items() if count}] * nodes


def resources_of(has: Mapping[str, float]) -> Resources:
    """What a node has, as Ray lists it."""
    kinds = sorted(name.removeprefix(KIND) for name in has if name.startswith(KIND))
    return Resources(has.get("CPU", 0), has.get("GPU", 0), ", ".join(kinds), has.get("memory", 0))
