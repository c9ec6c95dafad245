"""Racing promotions, registrations and tags, and kills at every write, on an object store.

PREPARE_RACE_REPEATS=50 runs each of them 50 times.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from races import NAME, Calls, attempt, move_at, promotion, race, register_six, rollback

from artifacts.registry.object_registry import ObjectRegistry
from artifacts.registry.registry import TUPLE_TAG
from pipeline.core.object_store import ObjectStore

REPEATS = int(os.environ.get("PREPARE_RACE_REPEATS", "1"))
pytestmark = pytest.mark.parametrize("turn", range(REPEATS))
# obstore runs threads of its own, which a fork would not have.
processes = multiprocessing.get_context("spawn")
START = {"champion": "2", "previous": "1"}


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "model.safetensors").write_bytes(b"weights")
    return tmp_path / "weights"


@pytest.fixture
def registry(tmp_path: Path, weights: Path, turn: int) -> ObjectRegistry:
    """A registry with six versions; 2 is the champion, and 1 was it before."""
    made = ObjectRegistry(f"store+file://{tmp_path}/bucket")
    register_six(made, weights)
    return made


def move(uri: str, what: dict[str, Any], barrier: Any, answers: Any) -> None:
    """Promote or roll back, once all at the barrier are ready; says how it went."""
    move_at(ObjectRegistry(uri), what, barrier, answers)


def register(uri: str, folder: Path, digest: str, who: str, barrier: Any, answers: Any) -> None:
    registry = ObjectRegistry(uri)
    barrier.wait()
    answers.put((who, registry.register(NAME, folder, {TUPLE_TAG: digest})))


def tag(uri: str, key: str, barrier: Any, answers: Any) -> None:
    registry = ObjectRegistry(uri)
    barrier.wait()
    for number in range(10):
        registry.set_tags(NAME, "1", {f"{key}.{number}": "set"})
    answers.put((key, "done"))


def move_until_killed(uri: str, what: dict[str, Any], when: str) -> None:
    """Killed before the entry is written, or right after."""
    create = ObjectStore.create

    def die(self: ObjectStore, name: str, content: bytes) -> bool:
        if when == "after":
            create(self, name, content)
        os.kill(os.getpid(), signal.SIGKILL)
        return False

    ObjectStore.create = die  # type: ignore[method-assign]
    attempt(ObjectRegistry(uri), what)


def test_of_several_moves_one_wins_and_the_others_are_told(registry: ObjectRegistry) -> None:
    moves = [rollback("back"), *(promotion(who, version) for who, version in ("a3", "b4", "c5"))]
    outcomes = race(processes, [(move, (registry.uri, what)) for what in moves])
    (winner,) = [who for who, outcome in outcomes.items() if isinstance(outcome, int)]
    version = next(m["version"] for m in moves if m["who"] == winner)
    after = {"champion": version, "previous": "2"} if version else {"champion": "1"}
    assert registry.aliases(NAME) == after
    assert [entry.who for entry in registry.history(NAME)[2:]] == [winner]
    for who in outcomes.keys() - {winner}:
        assert f"'champion' of '{NAME}' moved meanwhile" in outcomes[who]
        assert f"moved by {winner} at " in outcomes[who]
    assert registry.settle(NAME) == []


def test_registrations_and_tags_at_once(registry: ObjectRegistry, weights: Path) -> None:
    calls: Calls = [
        (register, (registry.uri, weights, digest, f"{digest} by {who}"))
        for who, digest in enumerate("gggh")
    ]
    calls += [(tag, (registry.uri, key)) for key in ("x", "y")]
    outcomes = race(processes, calls)
    made = {who[0]: {v for w, v in outcomes.items() if w[0] == who[0]} for who in outcomes}
    assert len(made["g"]) == len(made["h"]) == 1
    assert made["g"] | made["h"] == {"7", "8"}
    tags = registry.versions(NAME)[-1].tags
    assert {f"{key}.{number}" for key in "xy" for number in range(10)} <= tags.keys()


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("version", ["3", None])
def test_killed_at_its_entry(registry: ObjectRegistry, when: str, version: str | None) -> None:
    """A move is its entry: there is nothing that a kill could leave to be done."""
    what = {"who": "killed", "version": version, "replaces": "2"}
    runner = processes.Process(target=move_until_killed, args=(registry.uri, what, when))
    runner.start()
    runner.join(60)
    assert runner.exitcode == -signal.SIGKILL
    moved = {"champion": "3", "previous": "2"} if version else {"champion": "1"}
    assert registry.aliases(NAME) == (moved if when == "after" else START)
    assert registry.settle(NAME) == []
