"""A process that moves an alias, and may be killed at a write of its choice, for tests of races."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from races import NAME, move_at

from artifacts.registry.mlflow_registry import MlflowRegistry

WRITES = ("create_", "set_", "delete_")


class KilledAtAWrite:
    """A registry's client, which counts its writes and kills this process at one of them.

    Args:
        client: that does the work.
        kill_at: number of the write, from 1; 0 for none.
        when: 'before' or 'after' it was done.
    """

    def __init__(self, client: Any, kill_at: int, when: str) -> None:
        self._client = client
        self._kill_at = kill_at
        self._when = when
        self._writes = 0

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)
        return self._counted(method) if name.startswith(WRITES) else method

    def _counted(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            self._writes += 1
            due = self._writes == self._kill_at
            if due and self._when == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            answer = method(*arguments, **options)
            if due:
                os.kill(os.getpid(), signal.SIGKILL)
            return answer

        return call


def move(
    uri: str,
    what: dict[str, Any],
    barrier: Any,
    answers: Any,
    kill_at: int = 0,
    when: str = "before",
    *,
    locked: bool = True,
) -> None:
    """Promote or roll back, once all at the barrier are ready; says how it went.

    Args:
        uri: of the registry.
        what: who, replaces, and version (None: roll back).
        barrier: waits for the others, or None.
        answers: queue that receives who, outcome: a history number or an error.
        kill_at, when: see KilledAtAWrite.
        locked: hold the embedded registry's lock; without it only the journal stands between us.
    """
    registry = MlflowRegistry(uri)
    if not locked:
        registry.lock = lambda name: nullcontext()  # type: ignore[method-assign]
        registry.patience_seconds = 0.5
    registry._client = KilledAtAWrite(registry._client, kill_at, when)
    registry.aliases(NAME)  # opens the database
    move_at(registry, what, barrier, answers)
