"""A process that works on an OCI layout, and may be killed at a write of its choice."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from races import NAME, move_at

from artifacts.registry.oci_layout_registry import OciLayoutRegistry
from artifacts.registry.registry import TUPLE_TAG


def die_at(step: int) -> None:
    """Let this process be killed just before its flush or rename of that number, from 1; 0: never.

    Everything that lasts passes through one of them: `os.fsync` and `os.replace`.
    """
    calls = 0

    def counted(do: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == step:
                os.kill(os.getpid(), signal.SIGKILL)
            return do(*arguments, **options)

        return call

    os.fsync, os.replace = counted(os.fsync), counted(os.replace)


def move(uri: str, what: dict[str, Any], barrier: Any, answers: Any, step: int = 0) -> None:
    """Promote or roll back, once all at the barrier are ready; says how it went.

    Args:
        uri: of the registry.
        what: who, replaces, and version (None: roll back).
        barrier: waits for the others, or None.
        answers: queue that receives who, outcome: a history number or an error; or None.
        step: see `die_at`.
    """
    registry = OciLayoutRegistry(uri)
    die_at(step)
    move_at(registry, what, barrier, answers)


def register(
    uri: str, folder: Path, digest: str, barrier: Any, answers: Any, step: int = 0
) -> None:
    """Register the folder under that tuple; says which version it is."""
    registry = OciLayoutRegistry(uri)
    die_at(step)
    if barrier is not None:
        barrier.wait()
    version = registry.register(NAME, folder, {TUPLE_TAG: digest})
    if answers is not None:
        answers.put((digest, version))


def tag(uri: str, version: str, key: str, barrier: Any, answers: Any) -> None:
    """Set twenty tags of a version, one after the other."""
    registry = OciLayoutRegistry(uri)
    barrier.wait()
    for number in range(20):
        registry.set_tags(NAME, version, {f"{key}.{number}": "set"})
    answers.put((key, "done"))
