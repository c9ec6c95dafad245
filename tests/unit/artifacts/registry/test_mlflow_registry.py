"""The registry, with a real MLflow client and its embedded SQLite store.

Opening it takes seconds (MLflow's import, its schema), so one is opened for all tests, and every
test has its own model name.
"""

from __future__ import annotations

import re
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest
from free_port import free_port

from artifacts.registry.mlflow_registry import MlflowRegistry
from artifacts.registry.registry import TUPLE_TAG, AliasChange, ChangeReason, HistoryEntry, Version
from artifacts.registry.registry_address import still_has
from pipeline.core.errors import RegistryError


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> MlflowRegistry:
    folder = tmp_path_factory.mktemp("registry") / "made on first use"
    return MlflowRegistry(f"sqlite:///{folder / 'registry.db'}")


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A model name of the test's own; with an apostrophe, which filters must survive."""
    return f"it's {request.node.name}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "weights"


def register(registry: MlflowRegistry, name: str, folder: Path, digest: str) -> str:
    return registry.register(name, folder, {TUPLE_TAG: digest, "prepare.recipe": f"r-{digest}"})


def delete(registry: MlflowRegistry, name: str, version: str) -> None:
    """As a user would with MLflow's own client."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=registry.uri, registry_uri=registry.uri)
    client.delete_model_version(name, version)


def move(
    registry: MlflowRegistry, name: str, version: str, alias: str = "champion"
) -> HistoryEntry | None:
    """Move it from wherever it is."""
    cause = ChangeReason("promote", "ann", run="r", verdict="pass", reason="all gates passed")
    replaces = registry.aliases(name).get(alias)
    return registry.move_alias(name, AliasChange(alias, version, replaces, cause, "previous"))


def set_by_hand(registry: MlflowRegistry, name: str, alias: str, version: str) -> None:
    """As a user would with MLflow's own client."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=registry.uri, registry_uri=registry.uri)
    client.set_registered_model_alias(name, alias, version)


def aliases(registry: MlflowRegistry, name: str) -> dict[str, str]:
    found = {alias: v.version for v in registry.versions(name) for alias in v.aliases}
    assert found == registry.aliases(name)
    return found


class TestRegister:
    def test_a_version_points_to_the_folder(
        self, registry: MlflowRegistry, name: str, folder: Path
    ) -> None:
        assert register(registry, name, folder, "abc") == "1"
        assert registry.versions(name) == [
            Version(
                name=name,
                version="1",
                aliases=(),
                source=str(folder),
                tags={TUPLE_TAG: "abc", "prepare.recipe": "r-abc"},
            )
        ]
        assert name in registry.names()

    def test_a_version_used_again_gets_the_newer_tags(
        self, registry: MlflowRegistry, name: str, folder: Path
    ) -> None:
        registry.register(name, folder, {TUPLE_TAG: "a", "policy": "demo", "kept": "yes"})
        registry.register(name, folder, {TUPLE_TAG: "a", "policy": "default"})
        (version,) = registry.versions(name)
        assert version.tags == {TUPLE_TAG: "a", "policy": "default", "kept": "yes"}

    def test_another_name_has_versions_of_its_own(
        self, registry: MlflowRegistry, name: str, folder: Path
    ) -> None:
        register(registry, name, folder, "a")
        assert register(registry, f"{name} too", folder, "a") == "1"


class TestAlias:
    def test_a_name_that_would_be_a_history(
        self, registry: MlflowRegistry, name: str, folder: Path
    ) -> None:
        with pytest.raises(RegistryError, match=rf"'{re.escape(name)}\.history'"):
            register(registry, f"{name}.history", folder, "a")


class TestHistory:
    def test_a_history_is_no_model_of_its_own(
        self, registry: MlflowRegistry, name: str, folder: Path
    ) -> None:
        register(registry, name, folder, "a")
        move(registry, name, "1")
        assert name in registry.names()
        assert f"{name}.history" not in registry.names()

    def test_a_damaged_entry(self, registry: MlflowRegistry, name: str, folder: Path) -> None:
        register(registry, name, folder, "a")
        move(registry, name, "1")
        registry._client.set_model_version_tag(f"{name}.history", "1", "prepare.entry", "{}")
        with pytest.raises(RegistryError) as caught:
            registry.history(name)
        assert caught.value.where.endswith(f"model {name}.history")

    def test_an_entry_that_was_deleted(
        self, registry: MlflowRegistry, name: str, folder: Path
    ) -> None:
        """What came after it still holds."""
        for digest in "abc":
            register(registry, name, folder, digest)
        for version in "123":
            move(registry, name, version)
        delete(registry, f"{name}.history", "2")
        assert [e.number for e in registry.history(name)] == [1, 3]
        assert registry.settle(name) == []
        assert aliases(registry, name) == {"champion": "3", "previous": "2"}


class TestFetch:
    def test_a_source_that_is_no_checkpoint_is_not_copied(
        self, registry: MlflowRegistry, name: str, folder: Path, tmp_path: Path
    ) -> None:
        """Who may write to the registry may name any folder of this machine."""
        folder.mkdir(parents=True)
        (folder / "secret").write_text("content")
        register(registry, name, folder, "a")
        (tmp_path / "copy").mkdir()
        with pytest.raises(RegistryError) as caught:
            registry.fetch(registry.versions(name)[0], tmp_path / "copy")
        assert caught.value.where.endswith("weights")
        assert not list((tmp_path / "copy").iterdir())

    def test_the_folder_is_gone(
        self, registry: MlflowRegistry, name: str, folder: Path, tmp_path: Path
    ) -> None:
        register(registry, name, folder, "a")
        with pytest.raises(RegistryError):
            registry.fetch(registry.versions(name)[0], tmp_path / "copy")


class TestStillHas:
    def test_the_file_is_missing(self, tmp_path: Path) -> None:
        """Asking makes no file: it may be on a disk that is not mounted."""
        path = tmp_path / "registry.db"
        assert not still_has(f"sqlite:///{path}", "name", ["1"], {})
        assert not path.exists()

    def test_a_name_with_marks_that_uris_know(
        self, registry: MlflowRegistry, name: str, folder: Path, tmp_path: Path
    ) -> None:
        register(registry, name, folder, "a")
        copy = tmp_path / "100% ours?#.db"
        database = Path(registry.uri.removeprefix("sqlite:///"))
        copy.write_bytes(database.read_bytes())
        assert still_has(f"sqlite:///{copy}", name, ["1"], {})

    def test_asking_does_not_wait_for_mlflow(
        self, registry: MlflowRegistry, name: str, folder: Path
    ) -> None:
        register(registry, name, folder, "a")
        started = time.monotonic()
        assert still_has(registry.uri, name, ["1"], {})
        assert time.monotonic() - started < 1

    def test_without_the_tables_mlflow_is_asked(self, tmp_path: Path) -> None:
        path = tmp_path / "registry.db"
        with closing(sqlite3.connect(path)) as database:
            database.execute("CREATE TABLE notes (text TEXT)")
        assert not still_has(f"sqlite:///{path}", "name", ["1"], {})


class TestRefused:
    def test_nobody_answers(self) -> None:
        uri = f"http://127.0.0.1:{free_port()}"
        started = time.monotonic()
        with pytest.raises(RegistryError) as caught:
            MlflowRegistry(uri).names()
        assert caught.value.where == uri
        assert time.monotonic() - started < 30
        assert caught.value.where == uri
        assert "--registry" in caught.value.hint

    @pytest.mark.parametrize("rest", ["registry.db", "deeper/registry.db"])
    def test_a_folder_that_is_none(self, tmp_path: Path, rest: str) -> None:
        (tmp_path / "file").write_text("not a folder")
        with pytest.raises(RegistryError) as caught:
            MlflowRegistry(f"sqlite:///{tmp_path / 'file' / rest}")
        assert str(tmp_path) in caught.value.where

    def test_a_folder_that_may_not_be_written(self) -> None:
        """Nobody may make files in /proc, root included; it must not take MLflow's 100 s."""
        started = time.monotonic()
        with pytest.raises(RegistryError) as caught:
            MlflowRegistry("sqlite:////proc/registry.db")
        assert caught.value.where == "sqlite:////proc/registry.db"
        assert time.monotonic() - started < 10

    def test_a_file_that_is_no_database(self, tmp_path: Path) -> None:
        path = tmp_path / "registry.db"
        path.write_text("this is a letter, not a database" * 100)
        with pytest.raises(RegistryError) as caught:
            MlflowRegistry(f"sqlite:///{path}")
        assert caught.value.where == f"sqlite:///{path}"
        with pytest.raises(RegistryError) as caught:
            still_has(f"sqlite:///{path}", "name", ["1"], {})
        assert caught.value.where == f"sqlite:///{path}"

    def test_a_scheme_that_mlflow_does_not_know(self) -> None:
        with pytest.raises(RegistryError) as caught:
            MlflowRegistry("carrier-pigeon://loft").names()
        assert caught.value.where == "carrier-pigeon://loft"

    def test_a_name_that_mlflow_refuses(self, registry: MlflowRegistry, folder: Path) -> None:
        with pytest.raises(RegistryError, match="'org/name'"):
            register(registry, "org/name", folder, "a")
