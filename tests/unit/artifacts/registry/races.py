"""Helpers of the tests of races on aliases, for every registry."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

from artifacts.registry.registry import TUPLE_TAG, AliasChange, ChangeReason, HistoryEntry, Registry
from pipeline.core.errors import RegistryError

NAME = "model"
What = dict[str, Any]
"""A move: who, replaces, and version (None: roll back)."""
Calls = list[tuple[Callable[..., None], tuple[Any, ...]]]
"""What each process does, and its first arguments; a barrier and a queue follow."""


def register_six(registry: Registry, folder: Path) -> None:
    """Six versions of that folder; 2 is the champion, and 1 was it before."""
    for digest in "abcdef":
        registry.register(NAME, folder, {TUPLE_TAG: digest})
    for version, before in (("1", None), ("2", "1")):
        cause = ChangeReason("promote", "setup")
        registry.move_alias(NAME, AliasChange("champion", version, before, cause, "previous"))


def promotion(who: str, version: str, replaces: str = "2") -> What:
    return {"who": who, "version": version, "replaces": replaces}


def rollback(who: str) -> What:
    return {"who": who, "version": None, "replaces": "2"}


def attempt(registry: Registry, what: What) -> HistoryEntry | None:
    """Promote a version, or roll back when there is none."""
    version, who = what["version"], what["who"]
    cause = ChangeReason(
        "promote" if version else "rollback", who, run=f"run of {who}", verdict="pass"
    )
    if version:
        wanted = AliasChange("champion", version, what["replaces"], cause, "previous")
        return registry.move_alias(NAME, wanted)
    return registry.roll_back(NAME, "champion", cause, replaces=what["replaces"])


def outcome_of(registry: Registry, what: What) -> int | str:
    """Try it: the number of its entry, 'was there', or what went wrong."""
    try:
        entry = attempt(registry, what)
    except RegistryError as error:
        return error.message
    return entry.number if entry else "was there"


def move_at(registry: Registry, what: What, barrier: Any, answers: Any) -> None:
    """Try it once all at the barrier are ready, and say how it went; both may be None."""
    if barrier is not None:
        barrier.wait()
    outcome = outcome_of(registry, what)
    if answers is not None:
        answers.put((what["who"], outcome))


def race(processes: BaseContext, calls: Calls) -> dict[str, Any]:
    """Start them together; each one's outcome."""
    barrier, answers = processes.Barrier(len(calls)), processes.Queue()
    runners = [
        processes.Process(target=target, args=(*arguments, barrier, answers))  # type: ignore[attr-defined]
        for target, arguments in calls
    ]
    for runner in runners:
        runner.start()
    outcomes = [answers.get(timeout=60) for _ in runners]
    for runner in runners:
        runner.join(90)
        assert runner.exitcode == 0
    return dict(outcomes)
