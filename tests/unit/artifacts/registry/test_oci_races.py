"""Racing promotions and kills at every flush and rename, with real processes on an OCI layout.

PREPARE_RACE_REPEATS=50 runs each of them 50 times.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import racing_oci_mover
from races import NAME, outcome_of, promotion, race, register_six, rollback

from artifacts.registry.history import replay
from artifacts.registry.oci_layout_registry import OciLayoutRegistry
from artifacts.registry.registry import TUPLE_TAG

REPEATS = int(os.environ.get("PREPARE_RACE_REPEATS", "1"))
pytestmark = pytest.mark.parametrize("turn", range(REPEATS))
processes = multiprocessing.get_context("fork")
START = {"champion": "2", "previous": "1"}
NEW = {"champion": "3", "previous": "2"}
# A file is written, flushed, renamed, and its folder flushed: three steps a write. A promotion
# writes its entry, `previous`, `champion` and the mark that they are set.
STEPS_OF_A_WRITE = 3
LAST_STEP = 4 * STEPS_OF_A_WRITE
STEPS = range(1, LAST_STEP + 1)
RENAMED_AT = 3  # killed before this step, the entry's file has its name


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A registry with six versions; 2 is the champion, and 1 was it before."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "weights").mkdir()
    (folder / "weights" / "model.safetensors").write_bytes(b"weights")
    registry = OciLayoutRegistry(f"oci://{folder / 'registry'}")
    register_six(registry, folder / "weights")
    return folder


@pytest.fixture
def registry(made: Path, tmp_path: Path, turn: int) -> OciLayoutRegistry:
    """A copy of it of this test's own."""
    shutil.copytree(made / "registry", tmp_path / "registry")
    return OciLayoutRegistry(f"oci://{tmp_path / 'registry'}")


def race_moves(registry: OciLayoutRegistry, moves: list[dict[str, Any]]) -> dict[str, Any]:
    return race(processes, [(racing_oci_mover.move, (registry.uri, what)) for what in moves])


def kill(target: Callable[..., None], *arguments: Any) -> int | None:
    """Run it in a separate process, to be killed at a step; its exit code."""
    runner = processes.Process(target=target, args=arguments)
    runner.start()
    runner.join(60)
    return runner.exitcode


def kill_move(registry: OciLayoutRegistry, what: dict[str, Any], step: int) -> None:
    code = kill(racing_oci_mover.move, registry.uri, what, None, None, step)
    assert code == -signal.SIGKILL


def check_whole(registry: OciLayoutRegistry, wanted: dict[str, str], entries: int) -> None:
    assert registry.settle(NAME) == []
    assert registry.aliases(NAME) == wanted
    history = registry.history(NAME)
    assert len(history) == entries
    assert dict(replay(history).aliases) == wanted


class TestRace:
    def test_of_four_promotions_one_wins(self, registry: OciLayoutRegistry) -> None:
        moves = [promotion(who, version) for who, version in zip("abcd", "3456", strict=True)]
        outcomes = race_moves(registry, moves)
        (winner,) = [who for who, outcome in outcomes.items() if isinstance(outcome, int)]
        version = next(m["version"] for m in moves if m["who"] == winner)
        check_whole(registry, {"champion": version, "previous": "2"}, entries=3)
        for who in set("abcd") - {winner}:
            assert f"'champion' of '{NAME}' moved meanwhile: it is version" in outcomes[who]
            assert f"moved by {winner} at " in outcomes[who]

    def test_of_a_promotion_and_a_rollback_one_wins(self, registry: OciLayoutRegistry) -> None:
        outcomes = race_moves(registry, [promotion("up", "3"), rollback("back")])
        (winner,) = [who for who, outcome in outcomes.items() if isinstance(outcome, int)]
        wanted = {"up": NEW, "back": {"champion": "1"}}
        check_whole(registry, wanted[winner], entries=3)

    def test_a_chain_of_promotions_all_hold_in_order(self, registry: OciLayoutRegistry) -> None:
        moves = [promotion("a", "3", "2"), promotion("b", "4", "3"), promotion("c", "5", "4")]
        outcomes = race_moves(registry, moves)
        held = [e.version for e in registry.history(NAME)[2:]]
        assert held == ["3", "4", "5"][: len(held)]
        assert len(held) == sum(isinstance(outcome, int) for outcome in outcomes.values()) >= 1
        before = ["2", *held][-2]
        check_whole(registry, {"champion": held[-1], "previous": before}, entries=2 + len(held))

    def test_registrations_get_a_number_each(self, registry: OciLayoutRegistry, made: Path) -> None:
        """One version of the same tuple, which both get."""
        calls = [
            (racing_oci_mover.register, (registry.uri, made / "weights", digest))
            for digest in ("new", "newer", "a")
        ]
        outcomes = race(processes, calls)
        assert outcomes["a"] == "1"
        assert {outcomes["new"], outcomes["newer"]} == {"7", "8"}
        check_whole(registry, START, entries=2)

    def test_the_first_registrations_of_all(self, made: Path, tmp_path: Path, turn: int) -> None:
        """The layout is made once, and nobody's version is lost."""
        registry = OciLayoutRegistry(f"oci://{tmp_path / 'new'}")
        calls = [
            (racing_oci_mover.register, (registry.uri, made / "weights", digest))
            for digest in "abcd"
        ]
        assert sorted(race(processes, calls).values()) == ["1", "2", "3", "4"]
        assert len(registry.versions(NAME)) == 4

    def test_tags_and_moves_at_once_lose_nothing(self, registry: OciLayoutRegistry) -> None:
        """All of them change the same file."""
        outcomes = race(
            processes,
            [
                (racing_oci_mover.tag, (registry.uri, "3", "first")),
                (racing_oci_mover.tag, (registry.uri, "3", "second")),
                (racing_oci_mover.move, (registry.uri, promotion("a", "3"))),
            ],
        )
        assert outcomes == {"first": "done", "second": "done", "a": 3}
        tags = registry.versions(NAME)[3].tags
        assert sum(key.startswith(("first.", "second.")) for key in tags) == 40
        check_whole(registry, NEW, entries=3)


class TestKill:
    """SIGKILL before each flush and rename: the next finds the old or the new, whole."""

    @pytest.mark.parametrize("step", STEPS)
    def test_a_promotion(self, registry: OciLayoutRegistry, step: int) -> None:
        kill_move(registry, promotion("a", "3"), step)
        promised = step >= RENAMED_AT
        assert len(registry.history(NAME)) == (3 if promised else 2)
        # At the last step of all, the mark that it was carried out has its name already.
        finished = registry.settle(NAME)
        assert [e.who for e in finished] == (["a"] if RENAMED_AT <= step < LAST_STEP else [])
        assert registry.aliases(NAME) == (NEW if promised else START)
        again = outcome_of(registry, promotion("a", "3"))
        assert again == ("was there" if promised else 3)
        check_whole(registry, NEW, entries=3)

    @pytest.mark.parametrize("step", STEPS)
    def test_a_rollback(self, registry: OciLayoutRegistry, step: int) -> None:
        kill_move(registry, rollback("a"), step)
        again = outcome_of(registry, rollback("a"))
        if step == LAST_STEP:  # it had been done, and is not done twice
            assert "moved meanwhile: it is version 1" in str(again)
        else:
            assert again == 3
        check_whole(registry, {"champion": "1"}, entries=3)

    @pytest.mark.parametrize("step", STEPS[RENAMED_AT - 1 :])
    def test_another_promotion_comes_next(self, registry: OciLayoutRegistry, step: int) -> None:
        """It replaces what the killed one has promoted, or is told so."""
        kill_move(registry, promotion("a", "3"), step)
        lost = outcome_of(registry, promotion("b", "4"))
        assert "it is version 3, not version 2" in str(lost)
        assert "moved by a at " in str(lost)
        assert outcome_of(registry, promotion("b", "4", "3")) == 4
        check_whole(registry, {"champion": "4", "previous": "3"}, entries=4)


def test_a_killed_registration_is_done_anew(tmp_path: Path, turn: int) -> None:
    """At every step, until one comes through: then there is version 1, whole, and nothing else."""
    weights = tmp_path / "weights"
    weights.mkdir()
    (weights / "model.safetensors").write_bytes(b"weights")
    (weights / "config.json").write_text("{}")
    for step in range(1, 100):
        registry = OciLayoutRegistry(f"oci://{tmp_path / 'registry' / str(step)}")
        arguments = (registry.uri, weights, "a", None, None)
        code = kill(racing_oci_mover.register, *arguments, step)
        assert len(registry.versions(NAME)) == (1 if step >= 21 else 0)
        assert registry.register(NAME, weights, {TUPLE_TAG: "a"}) == "1"
        (version,) = registry.versions(NAME)
        (tmp_path / str(step)).mkdir()
        registry.fetch(version, tmp_path / str(step))
        assert (tmp_path / str(step) / "model.safetensors").read_bytes() == b"weights"
        assert not list((registry.folder / NAME).glob(".partial.*"))
        if code == 0:
            break
        assert code == -signal.SIGKILL
    assert step > 20
