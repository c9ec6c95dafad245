"""A process that moves an alias on the Hub, or registers, and may be killed at a write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hub_write_stand_in import point_there
from races import NAME, move_at
from racing_mover import KilledAtAWrite

from artifacts.registry.hub_registry import HubRegistry
from artifacts.registry.registry import TUPLE_TAG

URI = "hf://acme"
PATIENCE_SECONDS = 0.3


def registry_at(endpoint: str, kill_at: int = 0, when: str = "before") -> HubRegistry:
    """A registry on that server, which counts its writes (see KilledAtAWrite)."""
    point_there(pytest.MonkeyPatch(), endpoint)
    registry = HubRegistry(URI)
    registry.patience_seconds = PATIENCE_SECONDS
    # huggingface_hub's methods call each other by the class, so only ours are counted.
    registry._api = KilledAtAWrite(registry._api, kill_at, when)  # type: ignore[assignment]
    return registry


def move(
    endpoint: str,
    what: dict[str, Any],
    barrier: Any,
    answers: Any,
    kill_at: int = 0,
    when: str = "before",
) -> None:
    """Promote or roll back, once all at the barrier are ready; says how it went.

    Args:
        endpoint: of the server.
        what: who, replaces, and version (None: roll back).
        barrier: waits for the others, or None.
        answers: queue that receives who, outcome: a history number or an error.
        kill_at, when: see KilledAtAWrite.
    """
    registry = registry_at(endpoint, kill_at, when)
    registry.aliases(NAME)  # opens the connection
    move_at(registry, what, barrier, answers)


def register(
    endpoint: str,
    folder: Path,
    digest: str,
    barrier: Any,
    answers: Any,
    kill_at: int = 0,
    when: str = "before",
) -> None:
    """Register that folder; says which number it was given."""
    registry = registry_at(endpoint, kill_at, when)
    registry.versions(NAME)
    if barrier is not None:
        barrier.wait()
    number = registry.register(NAME, folder, {TUPLE_TAG: digest})
    answers.put((digest, number))
