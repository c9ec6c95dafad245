"""Runs work items as ordinary tasks of a Ray cluster, which Ray queues and places.

A task reserves cores, GPUs and memory of one node. The driver submits it again when its node is
lost: the store makes that safe. What runs on the node is in ray_node.py.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator

from pipeline.core.credentials import credential_variables
from pipeline.core.errors import PrepareError, StageError, UsageError
from pipeline.core.hardware import NodeInfo
from pipeline.core.installation import this_prepare
from pipeline.core.process_environment import forwarded_environment
from pipeline.core.resource_request import ResourceRequest
from pipeline.run.executors import ray_node
from pipeline.run.executors.executor import ExecutorOptions, Listener
from pipeline.run.executors.node_probe import SAME_PREPARE, parse_description
from pipeline.run.executors.ray_connection import connect
from pipeline.run.executors.resources import Resources, count_room, most_frequent, words_of
from pipeline.run.executors.stage_process import check_end, needs_of, stage_in
from pipeline.run.executors.work_events import pass_on

NOTE_DELAY_S = 2.0
END_TIMEOUT_S = 30.0  # more than the supervisor gives what it ends
POLL_INTERVAL_S = 0.5
DESCRIBE_TIMEOUT_S = 60.0  # a worker has to start there
KIND = "accelerator_type:"  # before the kind of a node's GPUs, of which a node has 1
SHARE_OF_KIND = 0.001  # as Ray itself takes of it


class RayOptions(ExecutorOptions):
    """Settings of a Ray cluster's executor."""

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
    tries: int = Field(3, ge=1, description="how often a work item is begun when its node is lost")

    @field_validator("address")
    @classmethod
    def _is_no_client(cls, address: str) -> str:
        if "://" in address:
            raise ValueError("events cannot be streamed through Ray's client: give HOST:PORT")
        return address

    def open(self) -> RayExecutor:
        """Return the executor; raise UsageError if ray is missing or no cluster answers."""
        connect(self.address)
        return RayExecutor(self)


class RayExecutor:
    """The executor of a Ray cluster; see executor.py."""

    has_our_environments = False

    def __init__(self, options: RayOptions) -> None:
        self._options = options
        self._where = f"executor ray, address {options.address}"

    def find_room(self, needs: ResourceRequest) -> RayPlace:
        """Return a place in Ray's queue; raise UsageError if no node has as much."""
        return RayPlace(needs, self._node_for(needs).taken_by(needs), self._options)

    def obstacle(self) -> str:
        return "room on the Ray cluster"

    def count_room(self, needs: ResourceRequest) -> int:
        return count_room(nodes().values(), needs)

    def describe_node(
        self, asked: Sequence[ResourceRequest], store: Path, listener: Listener
    ) -> NodeInfo:
        """Return a node's facts; reserves none of its resources.

        Raises:
            UsageError: no node of the cluster has as much.
            StageError: no suitable node answers.
        """
        import ray
        from ray.exceptions import RayError
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        found = nodes()
        needs = next((each for each in asked if most_frequent(found.values(), each)), asked[-1])
        kind, why = self._node_for(needs), "it was lost"
        given = forwarded_environment(os.environ, "")
        for node in (name for name, resources in found.items() if resources == kind):
            task = ray.remote(ray_node.describe).options(
                num_cpus=0,
                max_retries=0,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
            )
            try:
                told = ray.get(task.remote(this_prepare(), given), timeout=DESCRIBE_TIMEOUT_S)
            except (RayError, TimeoutError) as error:
                if isinstance(refused := getattr(error, "cause", None), PrepareError):
                    raise refused from error
                why = words_of_loss(error)
                continue
            return parse_description(str(told).encode(), f"node {node} of {self._where}")
        raise StageError(
            f"no node of the Ray cluster describes itself: {why}",
            where=self._where,
            hint=SAME_PREPARE,
        )

    def _node_for(self, needs: ResourceRequest) -> Resources:
        """Return the most frequent kind of node that has as much; raise UsageError if none has."""
        node = most_frequent(nodes().values(), needs)
        if node is None:
            raise UsageError(
                f"no node of the Ray cluster has {words_of(needs)}",
                where=self._where,
                hint="choose a profile for fewer GPUs, or add such a node: `ray status` lists them",
            )
        return node


class RayPlace:
    """A place in Ray's queue; see executor.py. Ray reserves resources when the task begins."""

    def __init__(self, needs: ResourceRequest, taken: Resources, options: RayOptions) -> None:
        self._needs = needs
        self._taken = taken
        self._options = options

    def submit(self, task: Path, log: Path) -> RayJob:
        """Queue the work item of the file when `wait` is called."""
        return RayJob(task, log, words_of(self._needs), task_options(self._taken), self._options)

    def release(self) -> None:
        """Do nothing: Ray releases the resources when the task ends."""


class RayJob:
    """A work item on a cluster; see executor.py."""

    def __init__(
        self, task: Path, log: Path, needs: str, resources: Mapping[str, Any], options: RayOptions
    ) -> None:
        self._task = task
        self._log = log
        self._needs = needs
        self._resources = resources
        self._options = options
        self._stream: Any = None
        self._submitting = threading.Lock()
        self._is_cancelled = False
        self._exit_code = 0

    def wait(self, listener: Listener) -> None:
        """Run it and pass its events on; retry on another node if its node is lost."""
        from ray.exceptions import RayError

        tries = self._options.tries
        for number in range(1, tries + 1):
            try:
                failure = pass_on(self._lines(listener), listener)
            except RayError as error:
                if isinstance(refused := getattr(error, "cause", None), PrepareError):
                    raise refused from error
                if self._is_cancelled or not is_loss(error) or number == tries:
                    raise self._fault(error, f", try {number} of {tries}") from error
                listener.note(f"{self._task.stem}: its node was lost; begun again on another")
                continue
            self._check_wanted()
            return check_end(self._exit_code, failure, self._log)
        return None

    def cancel(self) -> None:
        """End the work item and everything it started, and wait until that has ended."""
        import ray
        from ray.exceptions import RayError

        with self._submitting:
            self._is_cancelled = True
            stream = self._stream
        if stream is None:
            return
        with suppress(RayError, ValueError):
            ray.cancel(stream)
            ended = stream.completed()
            if not ray.wait([ended], timeout=END_TIMEOUT_S)[0]:
                ray.cancel(stream, force=True)

    def _lines(self, listener: Listener) -> Iterator[bytes]:
        """Yield the work item's events; keep its exit code."""
        import ray

        with self._submitting:
            self._check_wanted()
            self._stream = self._submit()
        note_at = time.monotonic() + NOTE_DELAY_S
        while True:
            while not ray.wait([self._stream], timeout=POLL_INTERVAL_S)[0]:
                if time.monotonic() >= note_at:
                    note_at = float("inf")
                    listener.note(f"{self._task.stem}: waits for {self._needs} on the Ray cluster")
            note_at = float("inf")
            try:
                sent = ray.get(next(self._stream))
            except StopIteration:
                return
            if isinstance(sent, int):
                self._exit_code = sent
            elif isinstance(sent, bytes):
                yield sent

    def _submit(self) -> Any:
        import ray

        here = {**os.environ, **credential_variables()}
        given = forwarded_environment(here, stage_in(self._task), needs_of(self._task))
        if (home := self._options.home) is not None:
            given["PREPARE_HOME"] = str(home)
        run: Any = ray.remote(ray_node.run).options(
            num_returns="streaming", max_retries=0, name=self._task.stem, **self._resources
        )
        gpus = int(self._resources["num_gpus"])
        return run.remote(this_prepare(), str(self._task), str(self._log), given, gpus)

    def _check_wanted(self) -> None:
        if self._is_cancelled:
            raise StageError(f"{self._task.stem} was cancelled", where=str(self._log))

    def _fault(self, error: Exception, which: str) -> StageError:
        if self._is_cancelled:
            return StageError(f"{self._task.stem} was cancelled", where=str(self._log))
        return StageError(
            f"{self._task.stem} did not come to its end on the Ray cluster: "
            f"{words_of_loss(error)}{which}",
            where=str(self._log),
            hint="every node has to have this prepare installed, and the store under the same "
            "path; then run the same command again",
        )


def nodes() -> dict[str, Resources]:
    """Return each live node's resources, by name."""
    import ray

    return {
        str(node["NodeID"]): resources_of(node["Resources"])
        for node in ray.nodes()
        if node["Alive"]
    }


def task_options(taken: Resources) -> dict[str, Any]:
    """Return Ray's reservation for these resources of a node."""
    options: dict[str, Any] = {"num_cpus": taken.cpus, "num_gpus": taken.gpus}
    if taken.memory_bytes:
        options["memory"] = int(taken.memory_bytes)
    if taken.gpu_kind:
        options["resources"] = {KIND + taken.gpu_kind: SHARE_OF_KIND}
    return options


def resources_of(has: Mapping[str, float]) -> Resources:
    """Return a node's resources from Ray's list."""
    kinds = sorted(name.removeprefix(KIND) for name in has if name.startswith(KIND))
    return Resources(has.get("CPU", 0), has.get("GPU", 0), ", ".join(kinds), has.get("memory", 0))


def is_loss(error: Exception) -> bool:
    """Whether a node or a process there is gone, rather than what it ran has failed."""
    from ray import exceptions

    lost = (
        exceptions.NodeDiedError,
        exceptions.ObjectLostError,
        exceptions.WorkerCrashedError,
    )
    return isinstance(error, lost)


def words_of_loss(error: Exception) -> str:
    """Ray's reason, or that of who ended the work."""
    return str(getattr(error, "cause", None) or error).strip()
