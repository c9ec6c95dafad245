"""A piece of work on a Ray cluster, and its room there.

Work whose node is lost is begun anew here, not by Ray, which would go on in the middle of the
events. What runs on the nodes is in ray_node.py: an agent that streams the events.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.core.credentials import hand_on
from pipeline.core.errors import PrepareError, StageError, StoreError
from pipeline.core.installation import this_prepare
from pipeline.core.needs import Needs
from pipeline.core.process_environment import travelling_environment
from pipeline.run.executors.events import OtherNodes, pass_on
from pipeline.run.executors.executor import Listener
from pipeline.run.executors.ray_cluster import CONTROL, RayCluster, bundles_of
from pipeline.run.executors.ray_logs import KeptLogs, SentLog
from pipeline.run.executors.ray_node import TaskFile
from pipeline.run.executors.ray_parts import LostNodeError, RayParts
from pipeline.run.executors.resources import Resources, words_of
from pipeline.run.executors.stage_process import check_end, stage_in

SECONDS_UNTIL_TOLD = 2.0
SECONDS_TO_END = 30.0  # more than the guard gives what it ends
SECONDS_BETWEEN_LOOKS = 0.5
SECONDS_TO_MOVE = 60.0  # until Ray knows that a node is gone, and has room on another


@dataclass(frozen=True)
class HowBegun:
    """How all work of an executor is begun.

    Attributes:
        tries: how often, when its node is lost.
        home: folder of the managed environments on each node; None where the node's own say it.
        logs: where those that nodes send are put.
    """

    tries: int
    home: Path | None
    logs: KeptLogs


class RayPlace:
    """Room on a cluster's node, or several, taken as soon as it is free; see executor.py.

    Args:
        taken: what the work takes of each node.
    """

    def __init__(
        self, needs: Needs, taken: Resources, cluster: RayCluster, begun: HowBegun
    ) -> None:
        self.cluster = cluster
        self.needs = needs
        self.begun = begun
        self._is_released = False
        self.room = cluster.take(bundles_of(taken, needs.nodes))

    def submit(self, task: Path, log: Path) -> RayJob:
        """Do the work that the file describes, once it is waited for."""
        return RayJob(self, task, log)

    def release(self) -> None:
        """Give the room back; may be called again."""
        if not self._is_released:
            self._is_released = True
            self.cluster.give_back(self.room)


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
        tries = self._place.begun.tries
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
            while self._place.room.is_moving():
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
                return self._greet(self._place.room.node(self._number))
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

        self._cluster.wait(self._place.room, is_ready)

    def _greet(self, node: str) -> tuple[Any, str]:
        """The agent there, which has answered, and the work's GPUs; raises RayError."""
        agent, gpus = self._cluster.agent_on(node), ""
        try:
            greeting = agent.greet.options(concurrency_group=CONTROL).remote(this_prepare())
            if count := self._place.needs.gpus:
                given = self._get(
                    self._cluster.gpus_of(self._place.room, self._number, node, count)
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
        if (home := self._place.begun.home) is not None:
            given["PREPARE_HOME"] = str(home)
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
                self._place.begun.logs.keep(sent)
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
            f"{words_of_loss(error)}{which}",
            where=str(self._log),
            cure="every node has to have this prepare installed, and the store under the same "
            "path; running the same command again continues where it stopped",
        )


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


def words_of_loss(error: Exception) -> str:
    """What Ray, or who ended the work, says."""
    return str(getattr(error, "cause", None) or error).strip()
