"""Runs work on the nodes of a Ray cluster, each piece as a guarded child of one of its workers.

What a piece of work needs is a placement group of one bundle, which Ray puts on one node, so a
server's GPUs are never spread. What the driver submits is a task that streams the events. When the
driver is gone Ray ends its workers, and the guards what these have started. A task whose node is
lost is submitted anew here, not by Ray, which would go on in the middle of the events.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator

from pipeline.core.credentials import hand_on
from pipeline.core.errors import StageError, UsageError
from pipeline.core.hardware import NodeFacts, this_node
from pipeline.core.needs import Needs
from pipeline.core.origin_variable import ORIGIN
from pipeline.core.private_files import keep_private, open_log
from pipeline.core.process_environment import (
    Need,
    arrived_environment,
    stage_environment,
    travelling_environment,
)
from pipeline.run.executors.events import pass_on
from pipeline.run.executors.executor import Listener, Options
from pipeline.run.executors.forks import ForkedProcess, Forks
from pipeline.run.executors.ray_head import RayHead
from pipeline.run.executors.resources import (
    Resources,
    count_room,
    most_frequent,
    words_of,
)
from pipeline.run.executors.stage_process import check_end, stage_in, start

SECONDS_UNTIL_TOLD = 2.0
SECONDS_TO_END = 30.0  # more than the guard gives what it ends
SECONDS_BETWEEN_LOOKS = 0.2
SECONDS_BETWEEN_KNOCKS = 5.0
SECONDS_TO_DESCRIBE = 60.0  # a worker has to start there
KIND = "accelerator_type:"  # before the kind of a node's GPUs, of which a node has 1
SHARE_OF_KIND = 0.001  # as Ray itself takes of it
CHUNK_BYTES = 1 << 16
MOST_LOG_BYTES = 1 << 24


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
        self._options = options
        self._head = head

    def find_room(self, needs: Needs) -> RayPlace:
        """A place in the cluster's queue.

        Raises:
            UsageError: no node of the cluster has as much.
            StageError: the cluster's head is gone.
        """
        node = self._node_for(needs)
        return RayPlace(needs, node.taken_by(needs), self._options, self._head)

    def obstacle(self) -> str:
        """There is always a place in the queue."""
        return "room on the Ray cluster"

    def count_room(self, needs: Needs) -> int:
        """How many such pieces of work could run side by side if nothing else ran."""
        return count_room(self._nodes().values(), needs)

    def describe_node(self, asked: Sequence[Needs], store: Path, listener: Listener) -> NodeFacts:
        """What one of the nodes says of itself on which such work is done; takes none of its room.

        Raises:
            UsageError: no node of the cluster has as much.
            StageError: none of those that have answers.
        """
        import ray
        from ray.exceptions import RayError
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        nodes = self._nodes()
        needs = next((each for each in asked if most_frequent(nodes.values(), each)), asked[-1])
        kind, why = self._node_for(needs), "it was lost"
        for node in (name for name, resources in nodes.items() if resources == kind):
            ask = ray.remote(describe_here).options(
                num_cpus=0,
                max_retries=0,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
            )
            answer = ask.remote(travelling_environment(os.environ, ""))
            try:
                told = ray.get(answer, timeout=SECONDS_TO_DESCRIBE)
            except (RayError, TimeoutError) as error:
                why = str(getattr(error, "cause", error)).strip()
                continue
            return NodeFacts.model_validate_json(told).model_copy(update={"machine": ""})
        raise StageError(
            f"no node of the Ray cluster says what it is: {why}",
            where=f"executor ray, address {self._options.address}",
            cure="every node has to have this prepare installed, in the same version",
        )

    def _node_for(self, needs: Needs) -> Resources:
        """Of the kinds of node that have as much the most frequent; raises UsageError."""
        node = most_frequent(self._nodes().values(), needs)
        if node is None:
            raise UsageError(
                f"no node of the Ray cluster has {words_of(needs)}",
                where=f"executor ray, address {self._options.address}",
                cure="choose a profile for fewer GPUs, or add such a node: `ray status` lists them",
            )
        return node

    def _nodes(self) -> dict[str, Resources]:
        import ray

        self._head.check()
        return {
            str(node["NodeID"]): resources_of(node["Resources"])
            for node in ray.nodes()
            if node["Alive"]
        }


class RayPlace:
    """Room on one node of a cluster, taken as soon as it is free; see executor.py."""

    def __init__(self, needs: Needs, room: Resources, options: RayOptions, head: RayHead) -> None:
        from ray.util.placement_group import placement_group

        self.head = head
        self.needs = needs
        self.room = room
        self.options = options
        taken = {"CPU": room.cpus, "GPU": room.gpus}
        taken["memory"] = int(room.memory_bytes)
        if room.gpu_kind:
            taken[KIND + room.gpu_kind] = SHARE_OF_KIND
        bundle = {name: count for name, count in taken.items() if count}
        self.group = placement_group([bundle], strategy="STRICT_PACK")

    def submit(self, task: Path, log: Path) -> RayJob:
        """Queue the work that the file describes."""
        return RayJob(self, task, log)

    def release(self) -> None:
        """Give the room back; with its head the cluster ends, and all room in it."""
        from ray.util.placement_group import remove_placement_group

        with suppress(StageError):
            self.head.check()
            remove_placement_group(self.group)


class LostNodeError(Exception):
    """A piece of work ended because its node did."""


class RayJob:
    """A piece of work on one node of a cluster; see executor.py."""

    def __init__(self, place: RayPlace, task: Path, log: Path) -> None:
        self._place = place
        self._task = task
        self._log = log
        self._cancelled = False
        self._exit_code = 0
        self._begin()

    def wait(self, listener: Listener) -> None:
        """Pass events on until the work ends, on another node where its own is lost.

        Raises:
            PrepareError: what it reported, or a StageError when it died without a word, or the
                cluster's head did, whereupon it is ended.
        """
        tries = self._place.options.tries
        for number in range(1, tries + 1):
            try:
                return self._follow(listener)
            except LostNodeError as error:
                if self._cancelled or number == tries:
                    raise self._fault(f"{error}, try {number} of {tries}") from error
            listener.note(f"{self._task.stem}: its node was lost; begun anew on another")
            self._begin()
        return None

    def cancel(self) -> None:
        """End the work and everything it started, and wait until that has ended."""
        import ray

        self._cancelled = True
        ray.cancel(self._stream, force=False)
        if not ray.wait([self._stream.completed()], timeout=SECONDS_TO_END)[0]:
            ray.cancel(self._stream, force=True)

    def _begin(self) -> None:
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        place, stage = self._place, stage_in(self._task)
        given = travelling_environment({**os.environ, **hand_on()}, stage)
        if place.options.home is not None:
            given["PREPARE_HOME"] = str(place.options.home)
        if not place.needs.gpus:
            given["CUDA_VISIBLE_DEVICES"] = ""  # Ray leaves all of them to who asks for none
        content = self._task.read_bytes() if self._task.is_file() else b""
        run = ray.remote(run_here).options(
            num_cpus=place.room.cpus,
            num_gpus=place.needs.gpus,
            max_retries=0,
            scheduling_strategy=PlacementGroupSchedulingStrategy(place.group, 0),
            name=self._task.stem,
        )
        self._stream: Any = run.remote(str(self._task), content, str(self._log), given)

    def _follow(self, listener: Listener) -> None:
        import ray
        from ray.exceptions import NodeDiedError, RayError, WorkerCrashedError

        if not ray.wait([self._place.group.ready()], timeout=SECONDS_UNTIL_TOLD)[0]:
            words = words_of(self._place.needs)
            listener.note(f"{self._task.stem}: waits for {words} on the Ray cluster")
        try:
            failure = pass_on(self._lines(), listener)
        except (NodeDiedError, WorkerCrashedError) as error:
            raise LostNodeError("its node, or the worker there, was lost") from error
        except RayError as error:
            raise self._fault(str(getattr(error, "cause", error)).strip()) from error
        check_end(self._exit_code, failure, self._log)

    def _lines(self) -> Iterator[bytes]:
        """The work's events; what is streamed besides, its logs and its exit code, is kept."""
        import ray

        for reference in self._references():
            sent = ray.get(reference)
            if isinstance(sent, int):
                self._exit_code = sent
            elif isinstance(sent, SentLog):
                with open_log(Path(sent.path)) as file:
                    file.write(sent.content)
            else:
                yield sent

    def _references(self) -> Iterator[Any]:
        """What is streamed; raises StageError, with the work ended, when the head is gone."""
        import ray

        looked = time.monotonic()
        while True:
            is_one_there, _ = ray.wait([self._stream], timeout=SECONDS_BETWEEN_KNOCKS)
            if time.monotonic() - looked >= SECONDS_BETWEEN_KNOCKS:
                try:
                    self._place.head.check()
                except StageError:
                    self.cancel()
                    raise
                looked = time.monotonic()
            if is_one_there:
                try:
                    yield next(self._stream)
                except StopIteration:
                    return

    def _fault(self, why: str) -> StageError:
        if self._cancelled:
            return StageError(f"{self._task.stem} was cancelled", where=str(self._log))
        return StageError(
            f"{self._task.stem} did not come to its end on the Ray cluster: {why}",
            where=str(self._log),
            cure="every node has to have this prepare installed, and the store under the same "
            "path; running the same command again continues where it stopped",
        )


@dataclass(frozen=True)
class SentLog:
    """What a piece of work has written into a log that the driver does not see."""

    path: str
    content: bytes


def resources_of(has: Mapping[str, float]) -> Resources:
    """What a node has, as Ray lists it."""
    kinds = sorted(name.removeprefix(KIND) for name in has if name.startswith(KIND))
    return Resources(has.get("CPU", 0), has.get("GPU", 0), ", ".join(kinds), has.get("memory", 0))


def describe_here(given: Mapping[str, str]) -> str:
    """On a node: what it is, as JSON.

    Args:
        given: variables that came with it.
    """
    variables = {**os.environ, **given}
    if not variables.get("CUDA_VISIBLE_DEVICES"):
        variables.pop("CUDA_VISIBLE_DEVICES", None)  # some Rays hide all from who asks for none
    return this_node(variables).model_dump_json()


def run_here(
    task: str, content: bytes, log: str, given: Mapping[str, str]
) -> Iterator[bytes | SentLog | int]:
    """On a node: do the work that the file describes; its events as lines, then its exit code.

    Args:
        content: of the task's file, which is not on this node where the store is an object store;
            then the logs are sent, too.
        given: variables that came with it.
    """
    variables = arrived_environment(os.environ, given)
    is_shared = not given.get(ORIGIN) or is_there(Path(task), content)
    if not is_shared:
        place_task(Path(task), content)
    run = Path(task).parents[1]
    before = {} if is_shared else {path: path.stat().st_size for path in run.rglob("*.log")}
    # The node may have to build the stage's environment first.
    variables = stage_environment(variables, stage_in(Path(task)), [Need.PACKAGES])
    process = start(_forks_of_worker(), Path(task), Path(log), variables)
    try:
        yield from _lines_of(process)
        code = process.wait()
        if not is_shared:
            yield from _logs_since(before, run)
        yield code
    finally:
        process.stop()
        if not is_shared:
            Path(task).unlink(missing_ok=True)


def is_there(file: Path, content: bytes) -> bool:
    """Whether this node sees that file, with that content."""
    return file.is_file() and file.read_bytes() == content


def place_task(task: Path, content: bytes) -> None:
    """Put the task's file there, with the folder of its run, as it is on the driver's machine."""
    with keep_private():
        task.parent.mkdir(parents=True, exist_ok=True)
        task.write_bytes(content)


def _logs_since(before: Mapping[Path, int], run: Path) -> Iterator[SentLog]:
    """What was added to the run's logs on this node since they had these sizes; of much its end."""
    for path in sorted(run.rglob("*.log")):
        with path.open("rb") as file:
            file.seek(max(before.get(path, 0), path.stat().st_size - MOST_LOG_BYTES))
            if content := file.read(MOST_LOG_BYTES):
                yield SentLog(str(path), content)


@cache
def _forks_of_worker() -> Forks:
    """A worker of Ray's does one piece of work after another."""
    return Forks()


def connect(address: str) -> RayHead:
    """Connect this process to the cluster, unless it is connected; its head.

    Raises:
        UsageError: ray is missing, or there is no cluster.
    """
    where = f"executor ray, address {address}"
    try:
        import ray
    except ImportError as error:
        raise UsageError(
            "the executor 'ray' needs the package ray",
            where=where,
            cure="in the clone of prepare: pip install '.[ray]'",
        ) from error
    if ray.is_initialized():
        return RayHead(ray.get_runtime_context().gcs_address)
    cure = "start one (`ray start --head`), or name its head: executor: {kind: ray, address: ...}"
    named = os.environ.get("RAY_ADDRESS", address) if address == "auto" else address
    try:
        if named != "auto":
            RayHead(named).knock()  # Ray itself would wait for ever
        with _own_signals():
            ray.init(address=named, log_to_driver=False, logging_level=logging.ERROR)
        _keep_standard_output()
    except (ConnectionError, OSError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(f"there is no Ray cluster: {reason}", where=where, cure=cure) from error
    return RayHead(ray.get_runtime_context().gcs_address)


def _keep_standard_output() -> None:
    """Have Ray not print there what a dying node had logged: it is for results.

    What Ray prints for log_to_driver=False comes from a thread that asks no setting.
    """
    from ray._private import worker

    worker.print_to_stdstream = lambda *_, **__: None


@contextmanager
def _own_signals() -> Iterator[None]:
    """Keep what our process does at a signal; Ray would have it end with another exit code."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, action in kept.items():
            signal.signal(number, action)


def _lines_of(process: ForkedProcess) -> Iterator[bytes]:
    """The lines that it prints, waited for in small steps: Ray cancels between two of them."""
    descriptor, rest = process.output.fileno(), b""
    while True:
        if not select.select([descriptor], [], [], SECONDS_BETWEEN_LOOKS)[0]:
            continue
        chunk = os.read(descriptor, CHUNK_BYTES)
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:  # noqa: UP028
            yield line  # a list is not sent what Ray sends
        if not chunk:
            return
