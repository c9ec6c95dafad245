"""Racing promotions and kills at every step, with real processes, on every registry.

PREPARE_RACE_REPEATS=50 runs each of them 50 times. The Hub is its stand-in.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hub_write_stand_in import HubWriteStandIn, point_there
from races import (
    AFTER,
    BEFORE,
    NAME,
    Place,
    What,
    move,
    outcome_of,
    promotion,
    race,
    register,
    register_six,
    rollback,
    run_alone,
    tag,
)

from artifacts.registry.history import replay
from artifacts.registry.mlflow_registry import MlflowRegistry
from artifacts.registry.registry import TUPLE_TAG, Registry
from artifacts.registry.registry_address import open_registry

REPEATS = int(os.environ.get("PREPARE_RACE_REPEATS", "1"))
pytestmark = [
    pytest.mark.parametrize("turn", range(REPEATS)),
    # huggingface_hub 2.4 uploads by an option that its HTTP library is about to give up.
    pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning"),
]
# Forked from a process that has imported what takes seconds.
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
START = {"champion": "2", "previous": "1"}
NEW = {"champion": "3", "previous": "2"}


@dataclass(frozen=True)
class Steps:
    """At which writes a killed process leaves what.

    Attributes:
        recorded: the first step before which the entry is written, so that the next command
            completes the move.
        promoted, rolled_back: the last steps, before which all is done.
        registered: the first step before which a version exists.
        after: whether the last step is after the last write, and not before one.
    """

    recorded: int
    promoted: int
    rolled_back: int
    registered: int = 0
    after: bool = True


STEPS = {
    # Entry, `previous`, `champion`, the mark that it was carried out.
    "mlflow": Steps(2, 5, 5),
    # A tag is removed and made again; version 1 has none before it, so `previous` is only removed.
    "hf": Steps(2, 7, 6, registered=8),
    # Each of the four writes is a flush, a rename, and a flush of the folder.
    "oci": Steps(3, 12, 12, registered=18, after=False),
}
RACING = pytest.mark.parametrize("kind", ["mlflow", "journal alone", "hf", "oci"])
REGISTERING = pytest.mark.parametrize("kind", ["hf", "oci"])


@pytest.fixture(scope="module")
def hub() -> Iterator[HubWriteStandIn]:
    """A server, whose answers come in any order."""
    with HubWriteStandIn() as server:
        server.jitter_seconds = 0.01
        yield server


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, hub: HubWriteStandIn) -> Path:
    """Registries with six versions; 2 is the champion, and 1 was it before."""
    folder = tmp_path_factory.mktemp("made")
    weights = folder_of(folder, "weights")
    with pytest.MonkeyPatch.context() as patch:
        point_there(patch, hub.url)
        for uri in (f"sqlite:///{folder}/registry.db", f"oci://{folder}/oci", "hf://acme"):
            registry = open_registry(uri)
            register_six(registry, weights)
            close(registry)
    hub.models["made"] = hub.models.pop(REPO)
    return folder


@pytest.fixture
def place(
    kind: str,
    made: Path,
    hub: HubWriteStandIn,
    tmp_path: Path,
    turn: int,
    monkeypatch: pytest.MonkeyPatch,
) -> Place:
    """A copy of the registry of this test's own."""
    if kind == "hf":
        point_there(monkeypatch, hub.url)
        hub.models[REPO] = deepcopy(hub.models["made"])
        return Place(kind, "hf://acme", hub.url)
    if kind == "oci":
        shutil.copytree(made / "oci", tmp_path / "oci")
        return Place(kind, f"oci://{tmp_path / 'oci'}")
    shutil.copyfile(made / "registry.db", tmp_path / "registry.db")
    return Place(kind, f"sqlite:///{tmp_path / 'registry.db'}")


@pytest.fixture
def registry(place: Place) -> Iterator[Registry]:
    found = open_registry(place.uri)
    found.patience_seconds = 0.3
    yield found
    close(found)


def close(registry: Registry) -> None:
    """MLflow keeps every database open that it ever opened; a thousand are too many."""
    if isinstance(registry, MlflowRegistry):
        registry._client._get_registry_client().store._dispose_engine()


def folder_of(root: Path, digest: str) -> Path:
    folder = root / digest
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").write_bytes(f"weights {digest}".encode())
    return folder


def kill_move(place: Place, what: What, step: int, last: int) -> None:
    """Run it in a separate process, killed at that step."""
    is_after = STEPS[place.kind].after and step == last
    at, when = (step - 1, AFTER) if is_after else (step, BEFORE)
    code = run_alone(processes, move, place, what, None, None, at, when)
    assert code == -signal.SIGKILL


def check_whole(
    hub: HubWriteStandIn, registry: Registry, wanted: dict[str, str], entries: int
) -> None:
    assert registry.settle(NAME) == []
    assert registry.aliases(NAME) == wanted
    history = registry.history(NAME)
    assert [entry.action for entry in history].count("outside") == 0
    assert len(history) == entries
    assert dict(replay(history).aliases) == wanted
    if registry.uri.startswith("hf:"):  # what the Hub's own clients see
        tags = hub.models[REPO].tags
        assert {alias: tags[f"v{version}"] for alias, version in wanted.items()} == {
            tag: commit for tag, commit in tags.items() if not tag.startswith("v")
        }


def check_versions(registry: Registry, folder: Path, wanted: dict[str, str]) -> None:
    """Each version has its own weights, and nothing of an unfinished one is left."""
    versions = registry.versions(NAME)
    assert {v.tags[TUPLE_TAG]: v.version for v in versions} == wanted
    for version in versions:
        copy = folder / f"copy-{version.version}"
        copy.mkdir(parents=True)
        registry.fetch(version, copy)
        content = (copy / "model.safetensors").read_bytes()
        assert content == f"weights {version.tags[TUPLE_TAG]}".encode()


def check_nothing_left(hub: HubWriteStandIn, place: Place, versions: int) -> None:
    if place.kind == "hf":
        assert set(hub.models[REPO].tags) == {f"v{n}" for n in range(1, versions + 1)}
    else:
        assert not list(Path(place.uri.removeprefix("oci://"), NAME).glob(".partial.*"))


@RACING
class TestRace:
    def test_of_four_promotions_one_wins(
        self, hub: HubWriteStandIn, place: Place, registry: Registry
    ) -> None:
        moves = [promotion(who, version) for who, version in zip("abcd", "3456", strict=True)]
        outcomes = race(processes, [(move, (place, what)) for what in moves])
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
        self, hub: HubWriteStandIn, place: Place, registry: Registry
    ) -> None:
        moves = [promotion("up", "3"), rollback("back")]
        outcomes = race(processes, [(move, (place, what)) for what in moves])
        registry.settle(NAME)
        (winner,) = [who for who, outcome in outcomes.items() if isinstance(outcome, int)]
        check_whole(hub, registry, {"up": NEW, "back": {"champion": "1"}}[winner], entries=3)

    def test_a_chain_of_promotions_all_hold_in_order(
        self, hub: HubWriteStandIn, place: Place, registry: Registry
    ) -> None:
        """Each replaces what the one before promoted, so who comes too early loses cleanly."""
        moves = [promotion("a", "3", "2"), promotion("b", "4", "3"), promotion("c", "5", "4")]
        outcomes = race(processes, [(move, (place, what)) for what in moves])
        registry.settle(NAME)
        held = [str(e.version) for e in registry.history(NAME)[2:]]
        assert held == ["3", "4", "5"][: len(held)]
        assert len(held) == sum(isinstance(outcome, int) for outcome in outcomes.values()) >= 1
        wanted = {"champion": held[-1], "previous": ["2", *held][-2]}
        check_whole(hub, registry, wanted, entries=2 + len(held))


@REGISTERING
def test_first_versions_registered_at_once(
    hub: HubWriteStandIn, place: Place, tmp_path: Path, turn: int
) -> None:
    """Each number is given once, and the same version made twice concurrently is one."""
    hub.models.pop(REPO, None)
    new = place if place.kind == "hf" else replace(place, uri=f"oci://{tmp_path / 'new'}")
    calls = [(register, (new, folder_of(tmp_path, digest), digest)) for digest in "abc"]
    outcomes = race(processes, calls)
    assert sorted(outcomes.values()) == ["1", "2", "3"]
    race(processes, [(register, (new, folder_of(tmp_path, "d"), "d"))] * 3)
    check_versions(open_registry(new.uri), tmp_path, {**outcomes, "d": "4"})
    check_nothing_left(hub, new, versions=4)
    if new.kind == "hf":
        assert set(hub.models[REPO].branches) == {"main", "prepare-history"}


@pytest.mark.parametrize("kind", ["oci"])
def test_tags_and_moves_at_once_lose_nothing(
    hub: HubWriteStandIn, place: Place, registry: Registry
) -> None:
    """All of them change the same file."""
    calls = [(tag, (place, "3", key)) for key in ("first", "second")]
    outcomes = race(processes, [*calls, (move, (place, promotion("a", "3")))])
    assert outcomes == {"first": "done", "second": "done", "a": 3}
    tags = registry.versions(NAME)[3].tags
    assert sum(key.startswith(("first.", "second.")) for key in tags) == 40
    check_whole(hub, registry, NEW, entries=3)


class TestKill:
    """SIGKILL at each step; then the next command finds the old or the new, whole.

    Killed before the entry, nothing has happened; afterwards, the next command carries it out.
    """

    @pytest.mark.parametrize(
        ("kind", "step"), [(k, n) for k, s in STEPS.items() for n in range(1, s.promoted + 1)]
    )
    def test_a_promotion(
        self, hub: HubWriteStandIn, place: Place, registry: Registry, step: int
    ) -> None:
        steps = STEPS[place.kind]
        kill_move(place, promotion("a", "3"), step, steps.promoted)
        promised = step >= steps.recorded
        assert len(registry.history(NAME)) == (3 if promised else 2)
        finished = registry.settle(NAME)
        is_pending = steps.recorded <= step < steps.promoted
        assert [e.who for e in finished] == (["a"] if is_pending else [])
        assert registry.aliases(NAME) == (NEW if promised else START)
        again = outcome_of(registry, promotion("a", "3"))
        assert again == ("was there" if promised else 3)
        check_whole(hub, registry, NEW, entries=3)

    @pytest.mark.parametrize(
        ("kind", "step"), [(k, n) for k, s in STEPS.items() for n in range(1, s.rolled_back + 1)]
    )
    def test_a_rollback(
        self, hub: HubWriteStandIn, place: Place, registry: Registry, step: int
    ) -> None:
        last = STEPS[place.kind].rolled_back
        kill_move(place, rollback("a"), step, last)
        again = outcome_of(registry, rollback("a"))
        if step == last:  # it had been done, and is not done twice
            assert "moved meanwhile: it is version 1" in str(again)
        else:
            assert again == 3
        check_whole(hub, registry, {"champion": "1"}, entries=3)

    @pytest.mark.parametrize(
        ("kind", "step"),
        [(k, n) for k, s in STEPS.items() for n in range(s.recorded, s.promoted + 1)],
    )
    def test_another_promotion_comes_next(
        self, hub: HubWriteStandIn, place: Place, registry: Registry, step: int
    ) -> None:
        """It replaces what the killed one has promoted, or is told so."""
        kill_move(place, promotion("a", "3"), step, STEPS[place.kind].promoted)
        lost = outcome_of(registry, promotion("b", "4"))
        assert "it is version 3, not version 2" in str(lost)
        assert "moved by a at " in str(lost)
        assert outcome_of(registry, promotion("b", "4", "3")) == 4
        check_whole(hub, registry, {"champion": "4", "previous": "3"}, entries=4)

    @REGISTERING
    def test_a_first_registration(
        self, hub: HubWriteStandIn, place: Place, tmp_path: Path, turn: int
    ) -> None:
        """At every step, until one comes through; the same command again takes up what is there."""
        first, second = folder_of(tmp_path, "a"), folder_of(tmp_path, "b")
        registered = STEPS[place.kind].registered
        for step in range(1, 100):
            hub.models.pop(REPO, None)
            sent = hub.count("PUT /lfs/*")
            uri = place.uri if place.kind == "hf" else f"oci://{tmp_path / str(step)}"
            new = replace(place, uri=uri)
            code = run_alone(processes, register, new, first, "a", None, None, step)
            registry = open_registry(uri)
            assert len(registry.versions(NAME)) == (1 if step >= registered else 0)
            assert registry.register(NAME, first, {TUPLE_TAG: "a"}) == "1"
            assert registry.register(NAME, second, {TUPLE_TAG: "b"}) == "2"
            check_versions(registry, tmp_path / f"copies-{step}", {"a": "1", "b": "2"})
            check_nothing_left(hub, new, versions=2)
            assert hub.count("PUT /lfs/*") - sent == (2 if place.kind == "hf" else 0)
            if code == 0:
                break
            assert code == -signal.SIGKILL
        assert step >= registered
