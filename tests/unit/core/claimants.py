"""Several owners of one store whose steps a test puts in any order: a world of claims.

Each owner runs the real code in a separate thread, on a separate node, and stops before every
touch of the store and every rename until it is given a step. So an owner that gets no more steps is
stopped, or cut off, and one that is killed leaves what it has done, and nothing else.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline.core.key_value_store import FileKeyValueStore, KeyValueStore
from pipeline.core.leases import Lease, Leases
from pipeline.core.store import Store

SECONDS = 60.0


class Killed(BaseException):
    """What ends the thread of an owner that is killed; nothing catches it."""


class SteppedStore:
    """A store that is touched only when its owner has a step."""

    def __init__(self, store: KeyValueStore, step: Callable[[], None]) -> None:
        self._store, self._step = store, step

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)

        def stepped(*arguments: Any) -> Any:
            self._step()
            return method(*arguments)

        return stepped


class KnownClaims(Leases):
    """Tells which claim its owner holds."""

    held: Lease | None = None

    def _acquire(self, key: str, on_wait: Callable[[str], None]) -> Lease:
        self.held = super()._acquire(key, on_wait)
        return self.held


class Claimant:
    """One owner: a program over a separate store, on a separate node.

    Args:
        root: of the store that all share.
        clock: seconds; of each node they may differ by a constant, which nothing compares.
    """

    def __init__(
        self,
        root: Path,
        name: str,
        program: Callable[[Store, Claimant], None],
        clock: Callable[[], float],
    ) -> None:
        self.name = name
        self.error: BaseException | None = None
        self._may, self._stands = threading.Semaphore(0), threading.Semaphore(0)
        self._killed = self.is_over = False
        self._beats = 0
        self.raw = FileKeyValueStore(root / "leases")
        self.leases = KnownClaims(
            SteppedStore(self.raw, self.pause),  # type: ignore[arg-type]
            seconds=SECONDS,
            node=name,
            clock=clock,
            sleep=lambda seconds: self.pause(),
        )
        self.store = Store(root)
        self.store.leases = self.leases
        self.thread = threading.Thread(target=self._run, args=(program,), daemon=True)
        self.thread.start()
        self._stands.acquire()

    def pause(self) -> None:
        """In the owner's own thread: stop until there is a step."""
        if threading.current_thread() is not self.thread:
            return
        self._stands.release()
        self._may.acquire()
        if self._killed:
            raise Killed

    def step(self) -> None:
        """Let it go on to the next touch of what is shared."""
        if not self.is_over:
            self._may.release()
            self._stands.acquire()

    def kill(self) -> None:
        """End it where it stands."""
        self._killed = True
        while not self.is_over:
            self.step()

    def beat(self) -> None:
        """What its other thread does as long as the process is not stopped."""
        held = self.leases.held
        if held is not None and not self.is_over and not held._over.is_set():
            self._beats += 1
            self.raw.put(f"{held.name}.beat", str(self._beats).encode())

    def _run(self, program: Callable[[Store, Claimant], None]) -> None:
        try:
            self.pause()
            program(self.store, self)
        except BaseException as error:
            self.error = error
        self.is_over = True
        self._stands.release()
