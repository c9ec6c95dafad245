"""The parts of a piece of work's servers on the other nodes of its room, on a Ray cluster.

Each is a task of its own. The work and they end together: where one of them is lost, or ends by
itself, the work is ended, too.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

from pipeline.core.errors import PrepareError
from pipeline.core.store import write_atomically
from pipeline.run.executors.executor import Listener

SECONDS_BETWEEN_LOOKS = 0.1
SECONDS_TO_END_TOO = 15.0  # that a server has to tell itself that one of its parts is gone


class LostNodeError(Exception):
    """A piece of work ended because its node did."""


class PartTask(Protocol):
    """A task on another node."""

    def follow(self, listener: Listener) -> None:
        """Do it until its end; raises LostNodeError or its own PrepareError."""

    def cancel(self) -> None:
        """End it, and wait until it has ended."""


class RayParts:
    """Those of one try at a piece of work; see `OtherNodes` in events.py.

    Args:
        task: file of the work, beside which theirs are written.
        submit: gives the task in a file, with its log, on the node of that number.
        end_work: ends the work itself.
        listener: is told what they tell.
    """

    def __init__(
        self,
        task: Path,
        submit: Callable[[Path, Path, int], PartTask],
        end_work: Callable[[], None],
        listener: Listener,
    ) -> None:
        self._task = task
        self._submit = submit
        self._end_work = end_work
        self._listener = listener
        self._parts: dict[str, list[_Part]] = {}
        self._ending = threading.Lock()
        self.is_one_lost = False
        self.failure: PrepareError | None = None

    def begin(self, name: str, tasks: Sequence[Mapping[str, Any]]) -> None:
        """Begin them, one on each of the other nodes."""
        with self._ending:  # who ends them meanwhile is to find all
            parts = self._parts.setdefault(name, [])
            for node, task in enumerate(tasks, start=1):
                file = self._task.with_name(f"{self._task.stem}.{name}.node{node}.json")
                write_atomically(file, json.dumps(task, indent=1))
                parts.append(_Part(self, self._submit(file, file.with_suffix(".log"), node)))

    def end(self, name: str) -> None:
        """End them, and wait until they have ended."""
        with self._ending:  # or another thread has
            parts = self._parts.pop(name, [])
            if parts:
                with ThreadPoolExecutor(len(parts)) as threads:
                    list(threads.map(_Part.end, parts))

    def end_all(self) -> None:
        """End all that there are."""
        with self._ending:
            names = list(self._parts)
        for name in names:
            self.end(name)

    def wait_for_loss(self) -> None:
        """After the work has failed: until one is seen to be lost, or all have failed, too."""
        left = [part for parts in self._parts.values() for part in parts]
        for part in left:
            part.is_to_end.set()  # why it fails now, the work has said
        deadline = time.monotonic() + SECONDS_TO_END_TOO
        while any(part.thread.is_alive() for part in left) and not self.is_one_lost:
            if self.failure is not None or time.monotonic() > deadline:
                return
            time.sleep(SECONDS_BETWEEN_LOOKS)

    def follow(self, part: _Part) -> None:
        """Wait for the part's end, in a thread of its own."""
        try:
            part.task.follow(self._listener)
        except LostNodeError:
            self.is_one_lost = True
            if not part.is_to_end.is_set():
                self._end_work()
        except PrepareError as error:
            # Where the work has ended it, or ends for the same reason, that says more.
            if not part.is_to_end.wait(SECONDS_TO_END_TOO):
                self.failure = error
                self._end_work()


class _Part:
    """One task, which a thread waits for."""

    def __init__(self, parts: RayParts, task: PartTask) -> None:
        self.task = task
        self.is_to_end = threading.Event()
        self.thread = threading.Thread(target=parts.follow, args=(self,), daemon=True)
        self.thread.start()

    def end(self) -> None:
        """End it, and wait until it has ended."""
        self.is_to_end.set()
        self.task.cancel()
        self.thread.join()
