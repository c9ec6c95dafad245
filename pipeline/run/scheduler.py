"""Runs work concurrently as resources allow: one loop decides.

The next work is computed from the plan and the store whenever something has ended; so a killed run
continues when it is run again. Threads wait for jobs, but the thread that called `run` handles all
their events.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass

from artifacts.run_record import StageReport
from pipeline.core.errors import PrepareError
from pipeline.core.interruption import hold_interruptions
from pipeline.core.resource_request import ResourceRequest
from pipeline.core.stage_record import StageSpec
from pipeline.plan.plan import VariantPlan
from pipeline.run.executors import Allocation, Job, Listener
from pipeline.run.serving_task import ServingTask
from pipeline.run.stage_runner import POLL_INTERVAL_S, SubmittedStageRunner

END_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class ScheduledWork:
    """One stage, or one serving task.

    Attributes:
        name: of its file and log; no two of one name run concurrently.
        make: returns the work item, when it is about to start.
        variant: its variant; None for shared work.
    """

    name: str
    make: Callable[[], StageSpec | ServingTask]
    needs: ResourceRequest
    variant: VariantPlan | None = None


FindWork = Callable[[Collection[ScheduledWork]], Sequence[ScheduledWork]]
"""What can be done now, what is more urgent first; it is given what runs."""
Ended = Callable[[ScheduledWork, PrepareError | None], None]
Event = Callable[[], None]


class Scheduler:
    """Runs work until none is left."""

    def __init__(self, stages: SubmittedStageRunner) -> None:
        self._stages = stages
        self._events = EventQueue()
        self._running: dict[str, _Running] = {}
        self._is_told = False

    def run(self, find_work: FindWork, ended: Ended) -> None:
        """Run all work, until there is none and nothing runs.

        Args:
            find_work: called before anything starts, and each time that something has ended.
            ended: called for each work item, with its error; an exception of it ends all others.

        Raises:
            PrepareError: what `ended` raised.
        """
        try:
            found = find_work([])
            while (is_waiting := self._start(found)) or self._running:
                # While something waits for room, only for a moment.
                self._events.wait(POLL_INTERVAL_S if is_waiting else None)
                with hold_interruptions():
                    self._events.handle()
                if over := [each for each in self._running.values() if each.is_over]:
                    for each in over:
                        self._end(each, ended)
                    found = find_work([each.work for each in self._running.values()])
        finally:
            with hold_interruptions():
                self._cancel()

    def _start(self, found: Sequence[ScheduledWork]) -> bool:
        """Start what fits; return whether something is left to start."""
        is_waiting = False
        for work in found:
            if work.name not in self._running and not self._start_one(work):
                is_waiting = True
        if is_waiting and not self._running and not self._is_told:
            self._stages.progress.note(f"waiting for {self._stages.executor.obstacle()}")
        self._is_told = is_waiting and not self._running
        return is_waiting

    def _start_one(self, work: ScheduledWork) -> bool:
        place = self._stages.executor.find_room(work.needs)
        if place is None:
            return False
        try:
            task = work.make()
            with hold_interruptions():
                job = self._stages.submit(place, work.name, task)
                told = _QueuedListener(self._events, self._stages.progress)
                running = _Running(work, task, place, job, told)
                running.thread.start()
                self._running[work.name] = running
                self._stages.note_submitted(running.specs)
        except BaseException:
            if work.name not in self._running:
                place.release()
            raise
        return True

    def _end(self, running: _Running, ended: Ended) -> None:
        with hold_interruptions():
            self._leave(running)
            if running.error is not None and not isinstance(running.error, PrepareError):
                raise running.error
            ended(running.work, running.error)

    def _leave(self, running: _Running) -> None:
        del self._running[running.work.name]
        running.place.release()
        is_done = running.is_over and running.error is None
        if isinstance(running.task, StageSpec):  # of those in a serving task, it tells itself
            self._stages.report(running.task, "ran" if is_done else "failed", running.started)
        is_progress = self._stages.note_ended(running.specs)
        if is_done and not is_progress:
            self._stages.find_finished(running.specs[0])

    def _cancel(self) -> None:
        """End all running work concurrently, and wait for its end."""
        if not self._running:
            return
        with ThreadPoolExecutor(len(self._running)) as threads:
            failures = list(threads.map(_Running.cancel, self._running.values()))
        with ExitStack() as left:  # each, even if another fails
            for why in filter(None, failures):
                left.callback(self._stages.progress.note, why)
            for running in reversed(self._running.values()):
                running.thread.join(END_TIMEOUT_S)
                left.callback(self._leave, running)
            left.callback(self._events.handle_all)


class EventQueue:
    """Events of jobs, from any thread, to be handled in one."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._is_one_there = threading.Event()

    def put(self, event: Event) -> None:
        self._queue.put(event)
        self._is_one_there.set()

    def wait(self, seconds: float | None) -> None:
        """Wait for an event without taking it, so an interruption loses none."""
        self._is_one_there.wait(seconds)

    def handle(self) -> bool:
        self._is_one_there.clear()
        if self._queue.empty():
            return False
        event = self._queue.get()
        if not self._queue.empty():
            self._is_one_there.set()
        event()
        return True

    def handle_all(self) -> None:
        while self.handle():
            pass


class _Running:
    """A started work item: a thread waits for its end, which becomes an event."""

    def __init__(
        self,
        work: ScheduledWork,
        task: StageSpec | ServingTask,
        place: Allocation,
        job: Job,
        told: _QueuedListener,
    ) -> None:
        self.work = work
        self.task = task
        self.specs = [task] if isinstance(task, StageSpec) else task.specs
        self.place = place
        self.job = job
        self.started = time.monotonic()
        self.is_over = False
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._wait, args=(told,), name=work.name, daemon=True)

    def cancel(self) -> str:
        """End it; return why that failed, or ''."""
        try:
            self.job.cancel()
        except Exception as error:  # an executor's library has its own errors
            return f"{self.work.name} may go on: {error}"
        return ""

    def _wait(self, told: _QueuedListener) -> None:
        error: BaseException | None = None
        try:
            self.job.wait(told)
        except BaseException as raised:
            error = raised
        told.events.put(lambda: self._finish(error))

    def _finish(self, error: BaseException | None) -> None:
        self.is_over, self.error = True, error


class _QueuedListener:
    """Pass everything to a listener later, in the thread that handles the events."""

    def __init__(self, events: EventQueue, listener: Listener) -> None:
        self.events = events
        self._listener = listener

    def advance(self, task: str, done: int, total: int | None, unit: str = "") -> None:
        self.events.put(lambda: self._listener.advance(task, done, total, unit))

    def note(self, text: str) -> None:
        self.events.put(lambda: self._listener.note(text))

    def stage_ended(self, stage: StageReport) -> None:
        self.events.put(lambda: self._listener.stage_ended(stage))
