"""Runs work on the nodes of a Ray cluster, each piece as a guarded child of an agent of ours there.

What a piece of work needs is a placement group of one bundle, which Ray puts on one node; of a
server that is asked to be spread over several nodes it is a bundle each (ray_parts.py). What runs
on the nodes is in ray_node.py: an agent that streams the events. Work whose node is lost is begun
anew here, not by Ray, which would go on in the middle of the events.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator

from pipeline.core.credentials import hand_on
from pipeline.core.errors import PrepareError, StageError, StoreError, UsageError
from pipeline.core.hardware import NodeFacts
from pipeline.core.installation import this_prepare
from pipeline.core.needs import Needs
from pipeline.core.private_files import open_log
from pipeline.core.process_environment import travelling_environment
from pipeline.run.executors.events import OtherNodes, pass_on
from pipeline.run.executors.executor import Listener, Options
from pipeline.run.executors.ray_head import RayHead
from pipeline.run.executors.ray_node import NodeAgent, SentLog, TaskFile
from pipeline.run.executors.ray_parts import LostNodeError, RayParts
from pipeline.run.executors.resources import (
    Resources,
    count_room,
    most_frequent,
    words_of,
)
from pipeline.run.executors.stage_process import check_end, stage_in

SECONDS_UNTIL_TOLD = 2.0
SECONDS_TO_END = 30.0  # more than the guard gives what it ends
SECONDS_BETWEEN_LOOKS = 0.5
SECONDS_BETWEEN_KNOCKS = 5.0
SECONDS_TO_MOVE = 60.0  # until Ray knows that a node is gone, and has room on another
SECONDS_KEPT = 0.5
SECONDS_TO_DESCRIBE = 60.0  # a worker has to start there
KIND = "accelerator_type:"  # before the kind of a node's GPUs, of which a node has 1
SHARE_OF_KIND = 0.001  # as Ray itself takes of it
Bundles = list[dict[str, float]]
CONTROL = "control"  # of an agent's threads those that do no work


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
        self._cluster = RayCluster(options, head)

    def find_room(self, needs: Needs) -> RayPlace:
        """A place in the cluster's queue.

        Raises:
            UsageError: no node of the cluster has as much.
            StageError: the cluster's head is gone.
        """
        node = self._node_for(needs)
        self._cluster.drop_unwanted()
        return RayPlace(needs, node.taken_by(needs), self._cluster)

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
                why = _words_of(error)
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


class RayCluster:
    """The nodes, and our agents there, each made when it is first wanted; for several threads."""

    def __init__(self, options: RayOptions, head: RayHead) -> None:
        self.options = options
        self.head = head
        self.logs = KeptLogs()
        self.words = f"executor ray, address {options.address}"
        self._knocked = time.monotonic()
        self._agents: dict[str, Any] = {}
        self._waiting: list[RayPlace] = []
        # What was given back: its room, the group, and when.
        self._kept: list[tuple[Bundles, Any, float]] = []
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

    def wait(self, place: RayPlace, is_ready: Callable[[Any], bool]) -> None:
        """Wait until the place has its room, be it another's that is released meanwhile.

        Args:
            is_ready: waits for a reference, for a moment.
        """
        with self._changing:
            self._waiting.append(place)
        try:
            while True:
                group = place.group
                ready = group.ready()  # also when it is removed
                while not is_ready(ready):
                    pass
                with self._changing:
                    if place.group is group:
                        return
        finally:
            with self._changing:
                self._waiting = [each for each in self._waiting if each is not place]

    def give_back(self, place: RayPlace) -> None:
        """Let who needs such room have it, now or in a moment; else Ray, which takes a second."""
        with self._changing:
            for other in self._waiting:
                if other.bundles == place.bundles:
                    other.group, place.group = place.group, other.group
                    self._waiting.remove(other)
                    break
            else:
                self._kept.append((place.bundles, place.group, time.monotonic()))
                return
        self._remove(place.group)  # that the other one has waited for in vain

    def take_kept(self, bundles: Bundles) -> Any:
        """A group of such room that was just given back, or None."""
        with self._changing:
            for number, (its_bundles, group, _) in enumerate(self._kept):
                if its_bundles == bundles:
                    del self._kept[number]
                    return group
        return None

    def drop_unwanted(self) -> None:
        """Give Ray the room that nobody has taken; called often while work is waited for."""
        with self._changing:
            until = time.monotonic() - SECONDS_KEPT
            unwanted = [group for _, group, since in self._kept if since < until]
            self._kept = [kept for kept in self._kept if kept[2] >= until]
        for group in unwanted:
            self._remove(group)

    def _remove(self, group: Any) -> None:
        """Have Ray give the room to others; with its head the cluster ends, and all room in it."""
        from ray.util.placement_group import remove_placement_group

        with suppress(StageError):
            self.head.check()
            remove_placement_group(group)

    def gpus_of(self, group: Any, number: int, node: str, count: int) -> Any:
        """A reference to the GPUs that are reserved there, as CUDA_VISIBLE_DEVICES lists them.

        They are the group's until it is removed, whatever else runs.

        Args:
            number: of the group's bundle that is there.
        """
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        ask = ray.remote(ray.get_gpu_ids).options(  # none of ours, whose import takes longer
            num_cpus=0,
            num_gpus=count,
            max_retries=0,
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, number),
        )
        with self._asking_gpus[node]:  # one worker answers all, one after another
            answer = ask.remote()
            ray.wait([answer], timeout=SECONDS_TO_DESCRIBE)
        return answer


class RayPlace:
    """Room on a cluster's node, or several, taken as soon as it is free; see executor.py."""

    def __init__(self, needs: Needs, room: Resources, cluster: RayCluster) -> None:
        from ray.util.placement_group import placement_group

        self.cluster = cluster
        self.needs = needs
        self._is_released = False
        taken = {"CPU": room.cpus, "GPU": room.gpus}
        taken["memory"] = int(room.memory_bytes)
        if room.gpu_kind:
            taken[KIND + room.gpu_kind] = SHARE_OF_KIND
        bundle = {name: count for name, count in taken.items() if count}
        self.bundles = [bundle] * needs.nodes
        strategy = "STRICT_PACK" if needs.nodes == 1 else "STRICT_SPREAD"
        kept = cluster.take_kept(self.bundles)
        self.group = kept or placement_group(self.bundles, strategy=strategy)

    def submit(self, task: Path, log: Path) -> RayJob:
        """Do the work that the file describes, once it is waited for."""
        return RayJob(self, task, log)

    def node(self, number: int) -> str:
        """Where the room is, once it is taken; of several nodes the one of that number."""
        return str(self._look()["bundles_to_node_id"][number])

    def is_moving(self) -> bool:
        """Whether room on another node is looked for, in place of that on one that was lost."""
        return bool(self._look()["state"] == "RESCHEDULING")

    def _look(self) -> dict[str, Any]:
        from ray.util.placement_group import placement_group_table

        return dict(placement_group_table(self.group))

    def release(self) -> None:
        """Give the room back; may be called again."""
        if not self._is_released:
            self._is_released = True
            self.cluster.give_back(self)


class RayJob:
    """A piece of work on a cluster; see executor.py.

    Args:
        number: of its node, among those of the place. On the first one is the work itself.
    """

    def __init__(self, place: RayPlace, task: Path, log: Path, number: int = 0) -> None:
        self._place = place
        self._number = number
        self._others: RayParts | None = None
        self._cluster = place.cluster
        self._task = task
        self._log = log
        self._is_cancelled = False
        self._try: tuple[Any, str] | None = None  # the agent that does it, and the try's name
        self._beginning = threading.Lock()
        self._exit_code = 0

    def wait(self, listener: Listener) -> None:
        """Do it and pass its events on, on another node where its own is lost.

        Raises:
            PrepareError: what it reported, or a StageError when it died without a word, or the
                cluster's head did, whereupon it is ended.
        """
        tries = self._cluster.options.tries
        for number in range(1, tries + 1):
            try:
                return self._do(listener)
            except LostNodeError as error:
                if self._is_cancelled or number == tries:
                    raise self._fault(error, f", try {number} of {tries}") from error
            listener.note(f"{self._task.stem}: its node was lost; begun anew on another")
        return None

    def cancel(self) -> None:
        """End the work and everything it started, and wait until that has ended."""
        with self._beginning:
            self._is_cancelled = True
        self.end_try()
        if self._others is not None:
            self._others.end_all()

    def end_try(self) -> None:
        """End what this try at it has started, and wait until that has ended."""
        import ray
        from ray.exceptions import RayError

        if self._try is None:
            return
        agent, name = self._try
        with suppress(RayError):  # its agent is gone, and so is it
            end = agent.end.options(concurrency_group=CONTROL).remote(name)
            if not ray.wait([end], timeout=SECONDS_TO_END)[0]:
                ray.kill(agent)

    def _do(self, listener: Listener) -> None:
        """One try; raises LostNodeError, or as `wait`."""
        if self._place.needs.nodes == 1:
            return self.follow(listener)
        others = RayParts(self._task, partial(RayJob, self._place), self.end_try, listener)
        self._others = others
        try:
            self._wait_for_room(listener)
            while self._place.is_moving():
                self._check_wanted()
                self._cluster.knock()
                time.sleep(SECONDS_BETWEEN_LOOKS)
            self.follow(listener, others)
        except PrepareError as error:
            if not self._is_cancelled:
                others.wait_for_loss()
                if others.is_one_lost:
                    raise LostNodeError("one of its nodes was lost") from error
            raise others.failure or error from error
        finally:
            others.end_all()

    def follow(self, listener: Listener, others: OtherNodes | None = None) -> None:
        """Do it and pass its events on; raises LostNodeError, or as `wait`."""
        from ray.exceptions import RayError

        try:
            agent, gpus = self._find_agent(listener)
            with self._beginning:
                self._check_wanted()
                stream = self._begin(agent, gpus)
            failure = pass_on(self._lines(stream), listener, others)
        except RayError as error:
            if is_loss(error):
                self._try = None
                raise LostNodeError("its node, or our agent there, was lost") from error
            if isinstance(refused := getattr(error, "cause", None), PrepareError):
                raise refused from error
            raise self._fault(error) from error
        except StoreError:  # which is ours: the work itself goes on
            self.end_try()
            raise
        self._check_wanted()
        check_end(self._exit_code, failure, self._log)

    def _find_agent(self, listener: Listener) -> tuple[Any, str]:
        """The agent on the node that has room for it, and the GPUs there that are its own.

        For a while after a node was lost Ray may still name it.

        Raises:
            RayError, LostNodeError: there is none, for longer than that.
        """
        from ray.exceptions import RayError

        deadline = 0.0
        while True:
            self._wait_for_room(listener)
            try:
                return self._greet(self._place.node(self._number))
            except (RayError, LostNodeError) as error:
                deadline = deadline or time.monotonic() + SECONDS_TO_MOVE
                if not is_loss(error) or time.monotonic() > deadline:
                    raise
            time.sleep(SECONDS_BETWEEN_LOOKS)

    def _wait_for_room(self, listener: Listener) -> None:
        told = time.monotonic() + SECONDS_UNTIL_TOLD

        def is_ready(reference: Any) -> bool:
            nonlocal told
            is_there = self._is_ready(reference)
            if not is_there and told and time.monotonic() >= told:
                words, told = words_of(self._place.needs), 0.0
                listener.note(f"{self._task.stem}: waits for {words} on the Ray cluster")
            return is_there

        self._cluster.wait(self._place, is_ready)

    def _greet(self, node: str) -> tuple[Any, str]:
        """The agent there, which has answered, and the work's GPUs; raises RayError."""
        agent, gpus = self._cluster.agent_on(node), ""
        try:
            greeting = agent.greet.options(concurrency_group=CONTROL).remote(this_prepare())
            if count := self._place.needs.gpus:
                given = self._get(
                    self._cluster.gpus_of(self._place.group, self._number, node, count)
                )
                gpus = ",".join(map(str, given))
            self._get(greeting)
        except BaseException:
            self._cluster.forget(node, agent)
            raise
        return agent, gpus

    def _begin(self, agent: Any, gpus: str) -> Any:
        """Have the agent do it; the stream of what it tells."""
        given = travelling_environment({**os.environ, **hand_on()}, stage_in(self._task))
        if self._cluster.options.home is not None:
            given["PREPARE_HOME"] = str(self._cluster.options.home)
        given["CUDA_VISIBLE_DEVICES"] = gpus
        task = TaskFile(str(self._task), b"", 0)
        if self._task.is_file():
            written = self._task.stat().st_mtime_ns
            task = TaskFile(str(self._task), self._task.read_bytes(), written)
        name = secrets.token_hex(8)
        self._try = agent, name
        run = agent.run.options(num_returns="streaming", name=self._task.stem)
        return run.remote(name, task, str(self._log), given)

    def _lines(self, stream: Any) -> Iterator[bytes]:
        """The work's events; what is streamed besides, its logs and its exit code, is kept."""
        while True:
            while not self._is_ready(stream):
                pass
            try:
                sent = self._get(next(stream))
            except StopIteration:
                return
            if isinstance(sent, int):
                self._exit_code = sent
            elif isinstance(sent, SentLog):
                self._cluster.logs.keep(sent)
            else:
                yield sent

    def _get(self, reference: Any) -> Any:
        import ray

        while not self._is_ready(reference):
            pass
        return ray.get(reference)

    def _is_ready(self, reference: Any) -> bool:
        """Wait for it, for a moment.

        Raises:
            StageError: the work was cancelled, or the head is gone, whereupon it is ended.
        """
        import ray

        if ray.wait([reference], timeout=SECONDS_BETWEEN_LOOKS)[0]:
            return True
        if self._try is None:
            self._check_wanted()
        try:
            self._cluster.knock()
            self._cluster.drop_unwanted()
        except StageError:
            self.cancel()
            raise
        return False

    def _check_wanted(self) -> None:
        if self._is_cancelled:
            raise self._fault(LostNodeError("it was cancelled"))

    def _fault(self, error: Exception, which: str = "") -> StageError:
        from ray.exceptions import LocalRayletDiedError

        if self._is_cancelled:
            return StageError(f"{self._task.stem} was cancelled", where=str(self._log))
        if isinstance(error, LocalRayletDiedError):
            return StageError(
                "this machine is no node of the Ray cluster any more: its raylet has ended",
                where=self._cluster.words,
                cure="join it again (`ray start --address=HOST:PORT`), or give the command on "
                "another node; it continues where this one stopped",
            )
        return StageError(
            f"{self._task.stem} did not come to its end on the Ray cluster: "
            f"{_words_of(error)}{which}",
            where=str(self._log),
            cure="every node has to have this prepare installed, and the store under the same "
            "path; running the same command again continues where it stopped",
        )


class KeptLogs:
    """Puts what nodes send of their logs into the run's folder; for several threads."""

    def __init__(self) -> None:
        self._begun: set[tuple[str, str]] = set()
        self._writing = threading.Lock()

    def keep(self, sent: SentLog) -> None:
        """Append it, the first of an agent's under a line that names the agent.

        Raises:
            StoreError: the disk is full, or the folder is gone.
        """
        try:
            with self._writing, open_log(Path(sent.path)) as file:
                if (sent.path, sent.agent) not in self._begun:
                    self._begun.add((sent.path, sent.agent))
                    file.write(f"{chr(10) * bool(file.tell())}==> {sent.agent} <==\n".encode())
                file.write(sent.content)
        except OSError as error:
            raise StoreError(
                f"a log from a node cannot be written: {error.strerror}",
                where=sent.path,
                cure="make room on that disk; the same command continues where this one stopped",
            ) from error


def is_loss(error: Exception) -> bool:
    """Whether it says that a node or a process there is gone, rather than what it did."""
    from ray import exceptions

    lost = (
        LostNodeError,
        exceptions.ActorUnschedulableError,
        exceptions.NodeDiedError,
        exceptions.TaskUnschedulableError,
        exceptions.WorkerCrashedError,
    )
    if isinstance(error, exceptions.RayActorError):
        return not error.actor_init_failed
    return isinstance(error, lost)


def _words_of(error: Exception) -> str:
    return str(getattr(error, "cause", None) or error).strip()


def resources_of(has: Mapping[str, float]) -> Resources:
    """What a node has, as Ray lists it."""
    kinds = sorted(name.removeprefix(KIND) for name in has if name.startswith(KIND))
    return Resources(has.get("CPU", 0), has.get("GPU", 0), ", ".join(kinds), has.get("memory", 0))


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
        # Ray has all workers import from the folder that we are in, which may be somebody's model.
        with _own_signals(), chdir("/"):
            ray.init(address=named, log_to_driver=False, logging_level=logging.ERROR)
        _keep_standard_output()
    except (ConnectionError, OSError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(f"there is no Ray cluster: {reason}", where=where, cure=cure) from error
    return RayHead(ray.get_runtime_context().gcs_address)


def _keep_standard_output() -> None:
    """Have Ray not print there what a dying node had logged: it is for results.

    Even with log_to_driver=False a thread of Ray's (2.60) prints it, which asks no setting.
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
