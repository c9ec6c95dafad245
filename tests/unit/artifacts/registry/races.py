"""Processes that race for an alias or are killed at a write, for every registry."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

import pytest
from hub_write_stand_in import point_there

from artifacts.registry.hub_registry import HubRegistry
from artifacts.registry.mlflow_registry import MlflowRegistry
from artifacts.registry.oci_layout_registry import OciLayoutRegistry
from artifacts.registry.registry import TUPLE_TAG, AliasChange, ChangeReason, HistoryEntry, Registry
from pipeline.core.errors import RegistryError

NAME = "model"
What = dict[str, Any]
"""A move: who, replaces, and version (None: roll back)."""
Calls = list[tuple[Callable[..., None], tuple[Any, ...]]]
"""What each process does, and its first arguments; a barrier and a queue follow."""
WRITES = ("create_", "set_", "delete_")
BEFORE, AFTER = "before", "after"


class KilledAtAWrite:
    """A registry's client, which counts its writes and kills this process at one of them.

    Args:
        client: that does the work.
        kill_at: number of the write, from 1; 0 for none.
        when: BEFORE or AFTER it was done.
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
            if due and self._when == BEFORE:
                os.kill(os.getpid(), signal.SIGKILL)
            answer = method(*arguments, **options)
            if due:
                os.kill(os.getpid(), signal.SIGKILL)
            return answer

        return call


def die_at(step: int) -> None:
    """Let this process be killed just before its flush or rename of that number, from 1; 0: never.

    Everything that lasts in a layout passes through one of them: `os.fsync` and `os.replace`.
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


@dataclass(frozen=True)
class Place:
    """A registry to race on.

    Attributes:
        kind: `journal alone` is MLflow's without the lock of its database.
        hub: URL of the Hub's stand-in, which the registry is on.
    """

    kind: str
    uri: str
    hub: str = ""

    def open(self, kill_at: int = 0, when: str = BEFORE) -> Registry:
        """Open it in this process, which is killed at that write."""
        if self.kind == "oci":
            die_at(kill_at)
            return OciLayoutRegistry(self.uri)
        if self.kind == "hf":
            point_there(pytest.MonkeyPatch(), self.hub)
            found = HubRegistry(self.uri)
            found.patience_seconds = 0.3
            # huggingface_hub's methods call each other by the class, so only ours are counted.
            found._api = KilledAtAWrite(found._api, kill_at, when)  # type: ignore[assignment]
            return found
        registry = MlflowRegistry(self.uri)
        if self.kind == "journal alone":
            registry.lock = lambda name: nullcontext()  # type: ignore[method-assign]
            registry.patience_seconds = 0.5
        registry._client = KilledAtAWrite(registry._client, kill_at, when)
        return registry


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


def move(
    place: Place, what: What, barrier: Any, answers: Any, kill_at: int = 0, when: str = BEFORE
) -> None:
    """Try it once all at the barrier are ready, and say how it went; both may be None."""
    registry = place.open(kill_at, when)
    registry.aliases(NAME)  # opens the connection
    if barrier is not None:
        barrier.wait()
    outcome = outcome_of(registry, what)
    if answers is not None:
        answers.put((what["who"], outcome))


def register(
    place: Place, folder: Path, digest: str, barrier: Any, answers: Any, kill_at: int = 0
) -> None:
    """Register the folder under that tuple, and say which version it is."""
    registry = place.open(kill_at)
    registry.versions(NAME)
    if barrier is not None:
        barrier.wait()
    version = registry.register(NAME, folder, {TUPLE_TAG: digest})
    if answers is not None:
        answers.put((digest, version))


def tag(place: Place, version: str, key: str, barrier: Any, answers: Any) -> None:
    """Set twenty tags of a version, one after the other."""
    registry = place.open()
    barrier.wait()
    for number in range(20):
        registry.set_tags(NAME, version, {f"{key}.{number}": "set"})
    answers.put((key, "done"))


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


def run_alone(processes: BaseContext, target: Callable[..., None], *arguments: Any) -> int | None:
    """Run it in a separate process, which may be killed; its exit code."""
    runner = processes.Process(target=target, args=arguments)  # type: ignore[attr-defined]
    runner.start()
    runner.join(120)
    code: int | None = runner.exitcode
    return code
