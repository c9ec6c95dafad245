"""Racing promotions and kills at every step, with real processes on an embedded registry.

PREPARE_RACE_REPEATS=50 runs each of them 50 times.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from races import NAME, What, outcome_of, promotion, race, register_six, rollback
from racing_mover import move

from artifacts.registry.history import replay
from artifacts.registry.mlflow_registry import MlflowRegistry

REPEATS = int(os.environ.get("PREPARE_RACE_REPEATS", "1"))
pytestmark = pytest.mark.parametrize("turn", range(REPEATS))
# Forked from a process that has MLflow imported: that takes seconds, a fork does not.
processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(
    ["mlflow.tracking", "mlflow.store.model_registry.sqlalchemy_store"]
)
AFTER_THE_LAST = 5
STEPS = (1, 2, 3, 4, AFTER_THE_LAST)
START = {"champion": "2", "previous": "1"}
NEW = {"champion": "3", "previous": "2"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A registry with six versions; 2 is the champion, and 1 was it before."""
    file = tmp_path_factory.mktemp("registry") / "registry.db"
    registry = MlflowRegistry(f"sqlite:///{file}")
    register_six(registry, file.parent)
    close(registry)
    return file


@pytest.fixture
def registry(made: Path, tmp_path: Path, turn: int) -> Iterator[MlflowRegistry]:
    """A copy of it of this test's own."""
    shutil.copyfile(made, tmp_path / "registry.db")
    registry = MlflowRegistry(f"sqlite:///{tmp_path / 'registry.db'}")
    yield registry
    close(registry)


def close(registry: MlflowRegistry) -> None:
    """MLflow keeps every database open that it ever opened; a thousand are too many."""
    registry._client._get_registry_client().store._dispose_engine()


def race_moves(registry: MlflowRegistry, moves: list[What], *, locked: bool) -> dict[str, Any]:
    mover = partial(move, locked=locked)
    return race(processes, [(mover, (registry.uri, what)) for what in moves])


@pytest.mark.parametrize("locked", [True, False], ids=["locked", "journal alone"])
class TestRace:
    def test_of_four_promotions_one_wins(self, registry: MlflowRegistry, locked: bool) -> None:
        moves = [promotion(who, version) for who, version in zip("abcd", "3456", strict=True)]
        outcomes = race_moves(registry, moves, locked=locked)
        registry.settle(NAME)
        (winner,) = [who for who, outcome in outcomes.items() if isinstance(outcome, int)]
        version = next(m["version"] for m in moves if m["who"] == winner)
        assert registry.aliases(NAME) == {"champion": version, "previous": "2"}
        entries = registry.history(NAME)
        assert [(e.version, e.who) for e in entries[2:]] == [(version, winner)]
        for who in set("abcd") - {winner}:
            assert (
                f"'champion' of '{NAME}' moved meanwhile: it is version {version}" in outcomes[who]
            )
            assert f"moved by {winner} at " in outcomes[who]

    def test_of_a_promotion_and_a_rollback_one_wins(
        self, registry: MlflowRegistry, locked: bool
    ) -> None:
        outcomes = race_moves(registry, [promotion("up", "3"), rollback("back")], locked=locked)
        registry.settle(NAME)
        (winner,) = [who for who, outcome in outcomes.items() if isinstance(outcome, int)]
        wanted = {"up": {"champion": "3", "previous": "2"}, "back": {"champion": "1"}}
        assert registry.aliases(NAME) == wanted[winner]
        assert [e.who for e in registry.history(NAME)[2:]] == [winner]

    def test_a_chain_of_promotions_all_hold_in_order(
        self, registry: MlflowRegistry, locked: bool
    ) -> None:
        """Each replaces what the one before promoted, so who comes too early loses cleanly."""
        moves = [promotion("a", "3", "2"), promotion("b", "4", "3"), promotion("c", "5", "4")]
        outcomes = race_moves(registry, moves, locked=locked)
        registry.settle(NAME)
        held = [e.version for e in registry.history(NAME)[2:]]
        assert held == ["3", "4", "5"][: len(held)]
        assert len(held) == sum(isinstance(outcome, int) for outcome in outcomes.values()) >= 1
        before = ["2", *held][-2]
        assert registry.aliases(NAME) == {"champion": held[-1], "previous": before}


class TestKill:
    """SIGKILL before each write, and after the last; then the next finds the old or the new, whole.

    The steps of a promotion and of a rollback: entry, `previous`, `champion`, the mark that it was
    carried out. Killed before the entry, nothing has happened; afterwards, the next command
    carries it out.
    """

    @pytest.mark.parametrize("step", STEPS)
    def test_a_promotion(self, registry: MlflowRegistry, step: int) -> None:
        kill(registry.uri, promotion("a", "3"), step)
        promised = step > 1
        assert len(registry.history(NAME)) == (3 if promised else 2)
        finished = registry.settle(NAME)
        assert [e.who for e in finished] == (["a"] if 1 < step < AFTER_THE_LAST else [])
        assert registry.aliases(NAME) == (NEW if promised else START)
        again = outcome_of(registry, promotion("a", "3"))
        assert again == ("was there" if promised else 3)
        check_whole(registry, NEW, entries=3)

    @pytest.mark.parametrize("step", STEPS)
    def test_a_rollback(self, registry: MlflowRegistry, step: int) -> None:
        kill(registry.uri, rollback("a"), step)
        again = outcome_of(registry, rollback("a"))
        if step == AFTER_THE_LAST:  # it had been done, and is not done twice
            assert "moved meanwhile: it is version 1" in str(again)
        else:
            assert again == 3
        check_whole(registry, {"champion": "1"}, entries=3)

    @pytest.mark.parametrize("step", STEPS[1:])
    def test_another_promotion_comes_next(self, registry: MlflowRegistry, step: int) -> None:
        """It replaces what the killed one has promoted, or is told so."""
        kill(registry.uri, promotion("a", "3"), step)
        lost = outcome_of(registry, promotion("b", "4"))
        assert "it is version 3, not version 2" in str(lost)
        assert "moved by a at " in str(lost)
        assert outcome_of(registry, promotion("b", "4", "3")) == 4
        check_whole(registry, {"champion": "4", "previous": "3"}, entries=4)


def kill(uri: str, what: dict[str, Any], step: int) -> None:
    """Run it in a separate process, killed at that step."""
    at, when = (step, "before") if step < AFTER_THE_LAST else (step - 1, "after")
    runner = processes.Process(target=move, args=(uri, what, None, None, at, when))
    runner.start()
    runner.join(60)
    assert runner.exitcode == -signal.SIGKILL


def check_whole(registry: MlflowRegistry, wanted: dict[str, str], entries: int) -> None:
    assert registry.settle(NAME) == []
    assert registry.aliases(NAME) == wanted
    history = registry.history(NAME)
    assert len(history) == entries
    assert dict(replay(history).aliases) == wanted
