"""Racing promotions, and kills at every write, with real processes and the Hub's stand-in.

PREPARE_RACE_REPEATS=50 runs each of them 50 times.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hub_write_stand_in import HubWriteStandIn, ModelRepository, point_there
from races import NAME, What, outcome_of, promotion, race, register_six, rollback
from racing_hub_mover import PATIENCE_SECONDS, URI, move, register, registry_at

from artifacts.registry.history import replay
from artifacts.registry.hub_registry import HubRegistry
from artifacts.registry.registry import TUPLE_TAG

REPEATS = int(os.environ.get("PREPARE_RACE_REPEATS", "1"))
pytestmark = [
    pytest.mark.parametrize("turn", range(REPEATS)),
    # huggingface_hub 2.4 uploads by an option that its HTTP library is about to give up.
    pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning"),
]
# What takes seconds to import; MLflow is for test_alias_races.py, whose processes are of the same
# server.
processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(
    [
        "mlflow.tracking",
        "mlflow.store.model_registry.sqlalchemy_store",
        "huggingface_hub.hf_api",
        "artifacts.registry.hub_registry",
    ]
)
REPO = f"acme/{NAME}"
# Entry; `previous` removed, made again; `champion` likewise; the mark that all was done.
WRITES_OF_A_PROMOTION = 6
# From version 2 to 1, with no version before it: `previous` is only removed.
WRITES_OF_A_ROLLBACK = 5
# Repository, card, history, branch, files, number, record, branch removed.
WRITES_OF_A_FIRST_VERSION = 8
START = {"champion": "2", "previous": "1"}
NEW = {"champion": "3", "previous": "2"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> ModelRepository:
    """A repository with six versions; 2 is the champion, and 1 was it before."""
    folder = tmp_path_factory.mktemp("variant")
    (folder / "model.safetensors").write_bytes(b"weights")
    with HubWriteStandIn() as server, pytest.MonkeyPatch.context() as patch:
        point_there(patch, server.url)
        registry = HubRegistry(URI)
        register_six(registry, folder)
        return server.models[REPO]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubWriteStandIn]:
    """An empty server, whose answers come in any order."""
    with HubWriteStandIn() as server:
        server.jitter_seconds = 0.01
        point_there(monkeypatch, server.url)
        yield server


@pytest.fixture
def registry(hub: HubWriteStandIn, made: ModelRepository, turn: int) -> HubRegistry:
    """A copy of that repository of this test's own."""
    hub.models[REPO] = deepcopy(made)
    found = HubRegistry(URI)
    found.patience_seconds = PATIENCE_SECONDS
    return found


def race_moves(hub: HubWriteStandIn, moves: list[What]) -> dict[str, Any]:
    return race(processes, [(move, (hub.url, what)) for what in moves])


def killed(target: Callable[..., None], *call: Any, step: int, last: int) -> None:
    """Run it in a separate process, killed before that write; after the last for one more."""
    at, when = (step, "before") if step <= last else (last, "after")
    runner = processes.Process(target=target, args=(*call, None, None, at, when))
    runner.start()
    runner.join(90)
    assert runner.exitcode == -signal.SIGKILL


class TestRace:
    def test_of_four_promotions_one_wins(self, hub: HubWriteStandIn, registry: HubRegistry) -> None:
        moves = [promotion(who, version) for who, version in zip("abcd", "3456", strict=True)]
        outcomes = race_moves(hub, moves)
        registry.settle(NAME)
        (winner,) = [who for who, outcome in outcomes.items() if isinstance(outcome, int)]
        version = next(m["version"] for m in moves if m["who"] == winner)
        check_whole(hub, registry, {"champion": version, "previous": "2"}, entries=3)
        assert registry.history(NAME)[-1].who == winner
        for who in set("abcd") - {winner}:
            told = f"'champion' of '{NAME}' moved meanwhile: it is version {version}"
            assert told in outcomes[who]
            assert f"moved by {winner} at " in outcomes[who]

    def test_of_a_promotion_and_a_rollback_one_wins(
        self, hub: HubWriteStandIn, registry: HubRegistry
    ) -> None:
        outcomes = race_moves(hub, [promotion("up", "3"), rollback("back")])
        registry.settle(NAME)
        (winner,) = [who for who, outcome in outcomes.items() if isinstance(outcome, int)]
        wanted = {"up": NEW, "back": {"champion": "1"}}
        check_whole(hub, registry, wanted[winner], entries=3)

    def test_a_chain_of_promotions_all_hold_in_order(
        self, hub: HubWriteStandIn, registry: HubRegistry
    ) -> None:
        """Each replaces what the one before promoted, so who comes too early loses cleanly."""
        moves = [promotion("a", "3", "2"), promotion("b", "4", "3"), promotion("c", "5", "4")]
        outcomes = race_moves(hub, moves)
        registry.settle(NAME)
        held = [e.version for e in registry.history(NAME)[2:]]
        assert held == ["3", "4", "5"][: len(held)]
        assert len(held) == sum(isinstance(outcome, int) for outcome in outcomes.values()) >= 1
        wanted = {"champion": str(held[-1]), "previous": str(["2", *held][-2])}
        check_whole(hub, registry, wanted, entries=2 + len(held))

    def test_versions_registered_at_once(
        self, hub: HubWriteStandIn, turn: int, tmp_path: Path
    ) -> None:
        """Each number is given once, and the same version made twice concurrently is one."""
        calls = [(register, (hub.url, folder_of(tmp_path, digest), digest)) for digest in "abc"]
        outcomes = race(processes, calls)
        assert sorted(outcomes.values()) == ["1", "2", "3"]
        versions = HubRegistry(URI).versions(NAME)
        assert {v.tags[TUPLE_TAG]: v.version for v in versions} == outcomes
        again = folder_of(tmp_path, "d")
        race(processes, [(register, (hub.url, again, "d"))] * 3)
        versions = HubRegistry(URI).versions(NAME)
        assert [v.tags[TUPLE_TAG] for v in versions].count("d") == 1
        model = hub.models[REPO]
        assert set(model.tags) == {f"v{v.version}" for v in versions}
        assert set(model.branches) == {"main", "prepare-history"}
        check_contents(hub, registry_at(hub.url))


class TestKill:
    """SIGKILL before each write, and after the last; then the next finds the old or the new, whole.

    Killed before the entry, nothing has happened; afterwards, the next command carries it out.
    """

    @pytest.mark.parametrize("step", range(1, WRITES_OF_A_PROMOTION + 2))
    def test_a_promotion(self, hub: HubWriteStandIn, registry: HubRegistry, step: int) -> None:
        killed(move, hub.url, promotion("a", "3"), step=step, last=WRITES_OF_A_PROMOTION)
        promised = step > 1
        assert len(registry.history(NAME)) == (3 if promised else 2)
        finished = registry.settle(NAME)
        assert [e.who for e in finished] == (["a"] if 1 < step <= WRITES_OF_A_PROMOTION else [])
        assert registry.aliases(NAME) == (NEW if promised else START)
        again = outcome_of(registry, promotion("a", "3"))
        assert again == ("was there" if promised else 3)
        check_whole(hub, registry, NEW, entries=3)

    @pytest.mark.parametrize("step", range(1, WRITES_OF_A_ROLLBACK + 2))
    def test_a_rollback(self, hub: HubWriteStandIn, registry: HubRegistry, step: int) -> None:
        killed(move, hub.url, rollback("a"), step=step, last=WRITES_OF_A_ROLLBACK)
        again = outcome_of(registry, rollback("a"))
        if step > WRITES_OF_A_ROLLBACK:  # it had been done, and is not done twice
            assert "moved meanwhile: it is version 1" in str(again)
        else:
            assert again == 3
        check_whole(hub, registry, {"champion": "1"}, entries=3)

    @pytest.mark.parametrize("step", range(2, WRITES_OF_A_PROMOTION + 2))
    def test_another_promotion_comes_next(
        self, hub: HubWriteStandIn, registry: HubRegistry, step: int
    ) -> None:
        """It replaces what the killed one has promoted, or is told so."""
        killed(move, hub.url, promotion("a", "3"), step=step, last=WRITES_OF_A_PROMOTION)
        lost = outcome_of(registry, promotion("b", "4"))
        assert "it is version 3, not version 2" in str(lost)
        assert "moved by a at " in str(lost)
        assert outcome_of(registry, promotion("b", "4", "3")) == 4
        check_whole(hub, registry, {"champion": "4", "previous": "3"}, entries=4)

    @pytest.mark.parametrize("step", range(1, WRITES_OF_A_FIRST_VERSION + 2))
    def test_the_first_version(
        self, hub: HubWriteStandIn, turn: int, tmp_path: Path, step: int
    ) -> None:
        """The same command again takes up what is there; the number is given once."""
        folder = folder_of(tmp_path, "a")
        killed(register, hub.url, folder, "a", step=step, last=WRITES_OF_A_FIRST_VERSION)
        registry = HubRegistry(URI)
        assert [v.version for v in registry.versions(NAME)] == (["1"] if step > 7 else [])
        assert registry.register(NAME, folder, {TUPLE_TAG: "a"}) == "1"
        assert registry.register(NAME, folder_of(tmp_path, "b"), {TUPLE_TAG: "b"}) == "2"
        assert set(hub.models[REPO].tags) == {"v1", "v2"}
        assert hub.count("PUT /lfs/*") == 2
        check_contents(hub, registry)


def folder_of(root: Path, digest: str) -> Path:
    folder = root / digest
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(f"weights {digest}".encode())
    return folder


def check_whole(
    hub: HubWriteStandIn, registry: HubRegistry, wanted: dict[str, str], entries: int
) -> None:
    assert registry.settle(NAME) == []
    assert registry.aliases(NAME) == wanted
    history = registry.history(NAME)
    assert [entry.action for entry in history].count("outside") == 0
    assert len(history) == entries
    assert dict(replay(history).aliases) == wanted
    # What the Hub's own clients see.
    tags = hub.models[REPO].tags
    numbers = {commit: tag for tag, commit in tags.items() if tag.startswith("v")}
    assert {t: numbers[c] for t, c in tags.items() if t not in numbers.values()} == {
        alias: f"v{version}" for alias, version in wanted.items()
    }


def check_contents(hub: HubWriteStandIn, registry: HubRegistry) -> None:
    """Each version's commit has its own weights."""
    model = hub.models[REPO]
    for version in registry.versions(NAME):
        files = model.commits[version.source.rpartition("@")[2]].files
        assert files["model.safetensors"] == f"weights {version.tags[TUPLE_TAG]}".encode()
        assert set(files) == {".gitattributes", "model.safetensors"}
