"""Resources of this node, shared by all users' runs through node locks.

All work shares the lock `node`; a speed measurement has it alone. `cpus` is held by one work item
that computes on every core, and each GPU has a lock by its UUID. Locks are taken in one order and
without waiting, so no process waits while it holds a part.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cached_property

from pipeline.core.errors import UsageError
from pipeline.core.gpus import VisibleGpu, allottable_gpus, busy_gpus
from pipeline.core.memory import memory_bytes
from pipeline.core.node_locks import NodeLocks
from pipeline.core.resource_request import ResourceRequest

WHOLE_NODE = "node"
ALL_CPUS = "cpus"
SEVERAL_GPUS = "gpus"
BUSY_SECONDS = 1.0


class NodeAllocation:
    """Reserved resources, until they are released or all processes that hold them have ended."""

    def __init__(self) -> None:
        self._held = ExitStack()
        self.descriptors: tuple[int, ...] = ()  # of the locks; anyone who has a copy holds them too
        self.gpus: tuple[VisibleGpu, ...] = ()  # that are ours alone

    def hold(self, descriptor: int) -> None:
        self._held.callback(os.close, descriptor)
        self.descriptors += (descriptor,)

    def hold_memory(self, give_back: Callable[[], None]) -> None:
        self._held.callback(give_back)

    def variables(self) -> dict[str, str]:
        """Return the variables that select the reserved GPUs; {} without GPUs."""
        names = ",".join(gpu.uuid for gpu in self.gpus)
        return {"CUDA_VISIBLE_DEVICES": names} if names else {}

    def release(self) -> None:
        """Give back what is held; may be called again."""
        self._held.close()
        self.descriptors = ()


class NodeAllocator:
    """The shared resources of this machine."""

    def __init__(self) -> None:
        self.obstacle = ""  # what prevented the last reservation
        self._locks = NodeLocks()
        self._lent_bytes = 0  # of memory, to work of this process
        self._busy: set[str] = set()
        self._asked = -math.inf

    @cached_property
    def gpus(self) -> list[VisibleGpu]:
        """Return the GPUs that can be reserved; the driver is asked once."""
        return allottable_gpus()

    def count_room(self, needs: ResourceRequest) -> int:
        """Return how many such work items fit on the idle node."""
        if needs.gpus and (needs.gpus > len(self.gpus) or (needs.gpus > 1 and self._is_sliced())):
            return 0
        if needs.exclusive or needs.cpus == "all":
            return 1
        if needs.gpus:
            rooms = len(self.gpus) // needs.gpus
            memory = memory_bytes() // needs.memory_bytes if needs.memory_bytes else rooms
            return max(1, min(rooms, memory))  # how much it takes is an estimate
        return len(os.sched_getaffinity(0))

    def find_room(self, needs: ResourceRequest) -> NodeAllocation | None:
        """Reserve resources for a work item.

        None if others use them, with the reason in `obstacle`.

        A process that needs the whole node, or several GPUs, and asks repeatedly, gets them: others
        get none of them meanwhile.

        Raises:
            UsageError: the node never has as much.
        """
        if self.count_room(needs) == 0:
            raise UsageError(
                f"{needs.gpus} GPUs are needed for one piece of work, and this node has "
                f"{len(self.gpus)}{' slices, of which it can use one' * self._is_sliced()}",
                where=f"CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', '(not set)')}",
                hint="let CUDA see as many GPUs of one kind, or choose a profile for fewer",
            )
        room = NodeAllocation()
        steps: Sequence[Callable[[ResourceRequest, NodeAllocation], str]] = (
            self._take_node,
            self._take_memory,
            self._take_gpus,
            self._take_cpus,
        )
        try:
            self.obstacle = next((why for take in steps if (why := take(needs, room))), "")
        except BaseException:
            room.release()
            raise
        if not self.obstacle:
            return room
        room.release()
        return None

    def _take_node(self, needs: ResourceRequest, room: NodeAllocation) -> str:
        if not needs.exclusive and self._locks.is_reserved(WHOLE_NODE):
            return "a measurement of speed, which waits to have this node alone"
        taken = self._locks.try_acquire(WHOLE_NODE, shared=not needs.exclusive)
        if taken is not None:
            room.hold(taken)
            if needs.exclusive:
                self._locks.cancel_reservation(WHOLE_NODE)
            return ""
        if needs.exclusive:
            self._locks.reserve(WHOLE_NODE)
            return "all other work on this node, to measure speed alone"
        return "a measurement of speed, which has this node alone"

    def _take_memory(self, needs: ResourceRequest, room: NodeAllocation) -> str:
        """Count the memory of this run's work alone; other runs' is unknown here."""
        size = needs.memory_bytes
        if size and self._lent_bytes and self._lent_bytes + size > memory_bytes():
            return (
                f"{size / 1e9:.1f} GB of memory: other work of this run has "
                f"{self._lent_bytes / 1e9:.1f} GB"
            )
        self._lent_bytes += size
        room.hold_memory(lambda: self._give_back(size))
        return ""

    def _give_back(self, size: int) -> None:
        self._lent_bytes -= size

    def _take_gpus(self, needs: ResourceRequest, room: NodeAllocation) -> str:
        if needs.gpus == 0:
            return ""
        if needs.gpus == 1 and self._locks.is_reserved(SEVERAL_GPUS):
            return "a GPU: a piece of work that needs several comes first"
        for gpu in self.gpus:
            if len(room.gpus) == needs.gpus:
                break
            if (taken := self._locks.try_acquire(gpu.uuid)) is None:
                continue
            if gpu.uuid in self._ask_busy():  # asked only where a GPU is none of our own's
                os.close(taken)
                continue
            room.hold(taken)
            room.gpus += (gpu,)
        if len(room.gpus) == needs.gpus:
            self._locks.cancel_reservation(SEVERAL_GPUS)
            return ""
        others = len(self._busy & {gpu.uuid for gpu in self.gpus})
        if 1 < needs.gpus <= len(self.gpus) - others:
            self._locks.reserve(SEVERAL_GPUS)
        return (
            f"{needs.gpus} of this node's {len(self.gpus)} GPUs"
            f"{f', of which other processes use {others}' if others else ''}"
        )

    def _ask_busy(self) -> set[str]:
        """Return UUIDs of GPUs used by other programs, cached for BUSY_SECONDS.

        The driver is slow.
        """
        if time.monotonic() - self._asked > BUSY_SECONDS:
            self._busy, self._asked = busy_gpus(), time.monotonic()
        return self._busy

    def _take_cpus(self, needs: ResourceRequest, room: NodeAllocation) -> str:
        if needs.cpus == "one":
            return ""
        if (taken := self._locks.try_acquire(ALL_CPUS)) is None:
            return "the cores of this node: other work computes on all of them"
        room.hold(taken)
        return ""

    def _is_sliced(self) -> bool:
        return any(gpu.is_slice for gpu in self.gpus)
