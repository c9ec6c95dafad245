"""What a registry must do, in a SQLite file and on a server: `Contract` with a fixture `uri`.

Also the processes that race for an alias, or are killed at a write.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from artifacts.registry import MANIFEST_TAG, Cause, Move, Registry
from prepare.errors import RegistryError, UsageError

FILES = {"model.safetensors": b"w", "config.json": b"{}", "README.md": b"", "deeper/file": b"text"}
WRITES = ("create_", "set_", "delete_")
processes = multiprocessing.get_context("fork")


def weights(folder: Path) -> Path:
    """A folder to register."""
    for path, content in FILES.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return folder


def register(registry: Registry, name: str, folder: Path, evidence: str) -> list[str]:
    """One version for each letter."""
    return [registry.register(name, folder, {MANIFEST_TAG: each}) for each in evidence]


def promote(
    registry: Registry, name: str, version: str, replaces: str | None, who: str = "ann"
) -> Move | None:
    cause = Cause("promote", who, run="r", verdict="pass", reason="all gates passed")
    return registry.move(
        name, "champion", version, cause, replaces=replaces, previous_alias="previous"
    )


def roll_back(registry: Registry, name: str, **how: Any) -> Move:
    return registry.roll_back(name, "champion", Cause("rollback", "ann", reason="bad"), **how)


def client(uri: str) -> Any:
    """MLflow's own client: another program, or a person in its UI."""
    from mlflow.tracking import MlflowClient

    return MlflowClient(tracking_uri=uri, registry_uri=uri)


class KilledAtAWrite:
    """MLflow's client, which kills this process at one of its writes.

    Args:
        kill_at: number of the write, from 1.
        after: it was done.
    """

    def __init__(self, client: Any, kill_at: int, *, after: bool) -> None:
        self._client, self._kill_at, self._after, self._writes = client, kill_at, after, 0

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)
        if not name.startswith(WRITES):
            return method

        def call(*arguments: Any, **options: Any) -> Any:
            self._writes += 1
            if self._writes == self._kill_at and not self._after:
                os.kill(os.getpid(), signal.SIGKILL)
            answer = method(*arguments, **options)
            if self._writes == self._kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            return answer

        return call


def killed_at(uri: str, kill_at: int, do: Callable[[Registry], Any], *, after: bool) -> bool:
    """Do it in a process that is killed at that write; whether it was."""

    def work() -> None:
        registry = Registry(uri)
        mlflow = registry._store._client
        registry._store.__dict__["_client"] = KilledAtAWrite(mlflow, kill_at, after=after)
        do(registry)
        os._exit(0)

    process = processes.Process(target=work)
    process.start()
    process.join(120)
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0


def race(uri: str, name: str, versions: list[str], replaces: str | None) -> list[str | None]:
    """Promote each version in a separate process, together; what each was told, None if won."""
    answers: Any = processes.Queue()
    barrier = processes.Barrier(len(versions))

    def work(version: str) -> None:
        registry = Registry(uri)
        registry.model(name)
        _ = registry._store._client
        barrier.wait()
        try:
            promote(registry, name, version, replaces, who=f"racer {version}")
            answers.put(None)
        except RegistryError as error:
            answers.put(error.message)

    racers = [processes.Process(target=work, args=(version,)) for version in versions]
    for racer in racers:
        racer.start()
    found = [answers.get(timeout=120) for _ in racers]
    for racer in racers:
        racer.join(60)
    return found


class Contract:
    """Every registry must hold it."""

    @pytest.fixture
    def name(self) -> str:
        return f"it's model {uuid4().hex[:8]}"

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        return weights(tmp_path / "weights")

    @pytest.fixture
    def registry(self, uri: str) -> Registry:
        return Registry(uri)

    def test_nothing_is_there(self, registry: Registry, name: str) -> None:
        registry.check(name)
        assert registry.model(name) is None
        assert (registry.versions(name), registry.aliases(name), registry.history(name)) == (
            [],
            {},
            [],
        )
        assert name not in registry.names()
        with pytest.raises(UsageError, match="nothing is registered"):
            roll_back(registry, name)

    def test_an_equal_version_meanwhile(
        self, registry: Registry, name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Another run registers the same between our look and our version, as without locks."""
        store = registry._store
        create = store.create_version

        def create_later(*words: Any) -> str:
            monkeypatch.setattr(store, "create_version", create)
            assert register(Registry(registry.uri), name, folder, "a") == ["1"]
            return create(*words)

        monkeypatch.setattr(store, "create_version", create_later)
        assert register(registry, name, folder, "ab") == ["1", "3"]
        assert [each.version for each in registry.versions(name)] == ["3", "1"]

    def test_versions(self, registry: Registry, name: str, folder: Path) -> None:
        tags = {"prepare.recipe": "fp8", "words": "a \u00e9 'b'"}
        assert registry.register(name, folder, {MANIFEST_TAG: "a", **tags}) == "1"
        assert register(registry, name, folder, "bab") == ["2", "1", "2"]
        newest, first = registry.versions(name)
        assert (newest.version, first.version) == ("2", "1")
        assert first.tags == {MANIFEST_TAG: "a", **tags}
        registry.set_tags(name, "1", {"prepare.recipe": "awq", "more": "x"})
        assert registry.versions(name)[1].tags == {
            MANIFEST_TAG: "a",
            **tags,
            "prepare.recipe": "awq",
            "more": "x",
        }
        assert name in registry.names()

    def test_every_file_is_fetched(
        self, registry: Registry, name: str, folder: Path, tmp_path: Path
    ) -> None:
        register(registry, name, folder, "a")
        (tmp_path / "fetched").mkdir()
        registry.fetch(registry.versions(name)[0], tmp_path / "fetched")
        found = {
            each.relative_to(tmp_path / "fetched").as_posix(): each.read_bytes()
            for each in (tmp_path / "fetched").rglob("*")
            if each.is_file()
        }
        assert found == FILES

    def test_moves(self, registry: Registry, name: str, folder: Path) -> None:
        register(registry, name, folder, "abc")
        first = promote(registry, name, "1", None)
        assert first is not None
        assert (first.replaced, first.done) == (None, True)
        assert promote(registry, name, "1", "1") is None
        promote(registry, name, "2", "1")
        assert registry.aliases(name) == {"champion": "2", "previous": "1"}
        with pytest.raises(RegistryError, match="points to version 2, not to version 1; ann"):
            promote(registry, name, "3", "1")
        assert registry.aliases(name) == {"champion": "2", "previous": "1"}
        assert [(m.action, m.replaced, m.version) for m in registry.history(name)] == [
            ("promote", None, "1"),
            ("promote", "1", "2"),
        ]
        told = registry.history(name)[1]
        assert (told.who, told.run, told.verdict, told.reason) == (
            "ann",
            "r",
            "pass",
            "all gates passed",
        )
        assert registry.versions(name)[1].aliases == ("champion",)

    def test_a_version_that_is_none(self, registry: Registry, name: str, folder: Path) -> None:
        register(registry, name, folder, "a")
        with pytest.raises(RegistryError):
            promote(registry, name, "7", None)
        assert registry.aliases(name) == {}
        assert registry.history(name) == []

    def test_rollbacks_go_back_the_way(self, registry: Registry, name: str, folder: Path) -> None:
        register(registry, name, folder, "abcd")
        for number in range(1, 5):
            promote(registry, name, str(number), str(number - 1) if number > 1 else None)
        assert [roll_back(registry, name).version for _ in range(2)] == ["3", "2"]
        assert registry.aliases(name) == {"champion": "2", "previous": "1"}
        promote(registry, name, "4", "2")
        assert roll_back(registry, name).version == "2"
        assert roll_back(registry, name).version == "1"
        assert registry.aliases(name) == {"champion": "1"}
        with pytest.raises(UsageError, match="no version to go back to"):
            roll_back(registry, name)
        assert roll_back(registry, name, to="3").version == "3"
        assert roll_back(registry, name).version == "1"
        with pytest.raises(RegistryError, match="points to version 1, not to version 9"):
            roll_back(registry, name, replaces="9")
        with pytest.raises(UsageError, match="has no version 9"):
            roll_back(registry, name, to="9")
        with pytest.raises(UsageError, match="points to version 1 already"):
            roll_back(registry, name, to="1")

    def test_past_a_version_that_was_deleted(
        self, registry: Registry, uri: str, name: str, folder: Path
    ) -> None:
        register(registry, name, folder, "abc")
        for number in range(1, 4):
            promote(registry, name, str(number), str(number - 1) if number > 1 else None)
        client(uri).delete_model_version(name, "2")
        assert roll_back(registry, name).version == "1"
        promote(registry, name, "3", "1")
        client(uri).delete_model_version(name, "3")  # and with it its alias
        assert [each.version for each in registry.history(name)] == ["1", "2", "3", "1", "3"]
        moved = roll_back(registry, name)
        assert (moved.version, moved.replaced) == ("1", None)
        client(uri).delete_model_version(name, "1")
        with pytest.raises(UsageError) as caught:
            roll_back(registry, name)
        assert "version 1 was deleted" in caught.value.hint
        assert len(registry.history(name)) == 6
        assert registry.register(name, folder, {MANIFEST_TAG: "d"}) == "4"

    def test_moved_by_another_program(
        self, registry: Registry, uri: str, name: str, folder: Path
    ) -> None:
        register(registry, name, folder, "abc")
        promote(registry, name, "1", None)
        client(uri).set_registered_model_alias(name, "champion", "2")
        with pytest.raises(RegistryError, match="points to version 2"):
            promote(registry, name, "3", "1")
        promote(registry, name, "3", "2")
        assert [roll_back(registry, name).version for _ in range(2)] == ["2", "1"]

    def test_a_damaged_entry_is_named(
        self, registry: Registry, uri: str, name: str, folder: Path
    ) -> None:
        register(registry, name, folder, "a")
        promote(registry, name, "1", None)
        client(uri).set_registered_model_tag(name, "prepare.move.000009", '{"number": "x"}')
        with pytest.raises(RegistryError) as caught:
            registry.history(name)
        assert "prepare.move.000009" in caught.value.where

    @pytest.mark.parametrize("after", [False, True])
    @pytest.mark.parametrize("kill_at", range(1, 5))
    @pytest.mark.parametrize("what", ["promotion", "rollback"])
    def test_the_same_command_completes_a_killed_one(
        self,
        registry: Registry,
        uri: str,
        name: str,
        folder: Path,
        what: str,
        kill_at: int,
        after: bool,
    ) -> None:
        """Killed before and after each write; nothing is done twice, and nothing is lost."""
        register(registry, name, folder, "abc")
        promote(registry, name, "1", None)
        promote(registry, name, "2", "1")

        def do(killed: Registry) -> None:
            if what == "promotion":
                promote(killed, name, "3", "2")
            else:
                roll_back(killed, name)

        assert killed_at(uri, kill_at, do, after=after)
        aliases = registry.aliases(name)
        assert aliases["champion"] in (("2", "3") if what == "promotion" else ("2", "1"))
        # The command takes what the alias points to now, as it did when it began.
        if what == "promotion":
            promote(registry, name, "3", aliases["champion"])
            assert registry.aliases(name) == {"champion": "3", "previous": "2"}
        elif kill_at == 4 and after:  # it was over
            assert aliases == {"champion": "1"}
        else:
            assert roll_back(registry, name).version == "1"
            assert registry.aliases(name) == {"champion": "1"}
        history = registry.history(name)
        assert [each.number for each in history] == [1, 2, 3]
        assert all(each.done for each in history)
        promote(registry, name, "2", registry.aliases(name)["champion"])
        way = registry.model(name)
        assert way is not None
        assert way.way("champion") == (["1", "2", "3", "2"] if what == "promotion" else ["1", "2"])

    def test_another_promotion_after_a_killed_one(
        self, registry: Registry, uri: str, name: str, folder: Path
    ) -> None:
        """What never happened is not in the history; what did, is."""
        register(registry, name, folder, "abc")
        promote(registry, name, "1", None)
        assert killed_at(uri, 1, lambda each: promote(each, name, "2", "1"), after=True)
        promote(registry, name, "3", "1")
        assert [each.version for each in registry.history(name)] == ["1", "3"]
        assert killed_at(uri, 3, lambda each: promote(each, name, "2", "3"), after=True)
        promote(registry, name, "1", "2")
        assert [each.version for each in registry.history(name)] == ["1", "3", "2", "1"]
        assert roll_back(registry, name).version == "2"
