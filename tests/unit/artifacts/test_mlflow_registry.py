"""The registry, with a real MLflow client and its embedded SQLite store.

Opening it takes seconds (MLflow's import, its schema), so one is opened for all tests, and every
test has a model name of its own.
"""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from artifacts.registry.mlflow_registry import (
    TUPLE_TAG,
    MlflowRegistry,
    Version,
    still_has,
)
from pipeline.errors import RegistryError
from pipeline.serving import free_port


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
    """As somebody would with MLflow's own client."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=registry.uri, registry_uri=registry.uri)
    client.delete_model_version(name, version)


def aliases(registry: MlflowRegistry, name: str) -> dict[str, str]:
    return {alias: v.version for v in registry.versions(name) for alias in v.aliases}


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

    def test_the_same_tuple_again_is_the_same_version(
        self, registry: MlflowRegistry, name: str, folder: Path
    ) -> None:
        numbers = [register(registry, name, folder, digest) for digest in ("a", "b", "a", "b")]
        assert numbers == ["1", "2", "1", "2"]
        assert len(registry.versions(name)) == 2

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

    def test_a_deleted_version_is_made_anew(
        self, registry: MlflowRegistry, name: str, folder: Path
    ) -> None:
        delete(registry, name, register(registry, name, folder, "a"))
        assert registry.versions(name) == []
        assert register(registry, name, folder, "a") == "2"

    def test_find_tuple(self, registry: MlflowRegistry, name: str, folder: Path) -> None:
        assert registry.find_tuple(name, "a") is None
        register(registry, name, folder, "a")
        register(registry, name, folder, "b")
        found = registry.find_tuple(name, "b")
        assert found is not None
        assert found.version == "2"
        assert registry.find_tuple(name, "c") is None


class TestListing:
    def test_newest_first_by_number(
        self, registry: MlflowRegistry, name: str, folder: Path
    ) -> None:
        for digest in "abcdefghijk":
            register(registry, name, folder, digest)
        numbers = [version.version for version in registry.versions(name)]
        assert numbers == [str(n) for n in range(11, 0, -1)]

    def test_a_model_that_does_not_exist(self, registry: MlflowRegistry, name: str) -> None:
        assert registry.versions(name) == []

    def test_plain_data(self, registry: MlflowRegistry, name: str, folder: Path) -> None:
        register(registry, name, folder, "a")
        registry.move_alias(name, "champion", "previous", "1")
        (version,) = registry.versions(name)
        assert version.to_dict() == {
            "name": name,
            "version": "1",
            "aliases": ["champion"],
            "source": str(folder),
            "tags": {TUPLE_TAG: "a", "prepare.recipe": "r-a"},
        }

    def test_a_second_opening_sees_the_same(
        self, registry: MlflowRegistry, name: str, folder: Path
    ) -> None:
        register(registry, name, folder, "a")
        assert MlflowRegistry(registry.uri).versions(name) == registry.versions(name)


class TestAlias:
    def test_previous_keeps_the_one_before(
        self, registry: MlflowRegistry, name: str, folder: Path
    ) -> None:
        for digest in "abc":
            register(registry, name, folder, digest)
        registry.move_alias(name, "champion", "previous", "1")
        assert aliases(registry, name) == {"champion": "1"}
        registry.move_alias(name, "champion", "previous", "2")
        assert aliases(registry, name) == {"champion": "2", "previous": "1"}
        registry.move_alias(name, "champion", "previous", "3")
        assert aliases(registry, name) == {"champion": "3", "previous": "2"}

    def test_moving_to_where_it_is_changes_nothing(
        self, registry: MlflowRegistry, name: str, folder: Path
    ) -> None:
        for digest in "ab":
            register(registry, name, folder, digest)
        registry.move_alias(name, "champion", "previous", "1")
        registry.move_alias(name, "champion", "previous", "2")
        registry.move_alias(name, "champion", "previous", "2")
        assert aliases(registry, name) == {"champion": "2", "previous": "1"}

    def test_one_version_may_have_both(
        self, registry: MlflowRegistry, name: str, folder: Path
    ) -> None:
        register(registry, name, folder, "a")
        registry.move_alias(name, "champion", "previous", "1")
        registry.move_alias(name, "zweiter", "previous", "1")
        assert registry.versions(name)[0].aliases == ("champion", "zweiter")

    def test_a_version_that_does_not_exist(
        self, registry: MlflowRegistry, name: str, folder: Path
    ) -> None:
        register(registry, name, folder, "a")
        with pytest.raises(RegistryError, match="not found") as caught:
            registry.move_alias(name, "champion", "previous", "9")
        assert caught.value.where == registry.uri
        assert aliases(registry, name) == {}


class TestStillHas:
    def test_present_and_missing(self, registry: MlflowRegistry, name: str, folder: Path) -> None:
        register(registry, name, folder, "a")
        register(registry, name, folder, "b")
        assert still_has(registry.uri, name, ["1"], {})
        assert still_has(registry.uri, name, ["2", "1"], {})
        assert not still_has(registry.uri, name, ["1", "3"], {})
        assert not still_has(registry.uri, f"{name} too", ["1"], {})

    def test_deleted(self, registry: MlflowRegistry, name: str, folder: Path) -> None:
        register(registry, name, folder, "a")
        register(registry, name, folder, "b")
        delete(registry, name, "1")
        assert not still_has(registry.uri, name, ["1"], {})
        assert still_has(registry.uri, name, ["2"], {})

    def test_an_alias_must_point_where_it_did(
        self, registry: MlflowRegistry, name: str, folder: Path
    ) -> None:
        for digest in "ab":
            register(registry, name, folder, digest)
        assert not still_has(registry.uri, name, ["1"], {"champion": "1"})
        registry.move_alias(name, "champion", "previous", "1")
        assert still_has(registry.uri, name, ["1"], {"champion": "1"})
        assert not still_has(registry.uri, name, ["1"], {"champion": "2"})
        registry.move_alias(name, "champion", "previous", "2")
        assert not still_has(registry.uri, name, ["1"], {"champion": "1"})
        assert still_has(registry.uri, name, ["1", "2"], {"champion": "2", "previous": "1"})

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
        with pytest.raises(RegistryError, match="the model registry failed") as caught:
            MlflowRegistry(uri).names()
        assert time.monotonic() - started < 30
        assert caught.value.where == uri
        assert "--registry" in caught.value.cure

    @pytest.mark.parametrize("rest", ["registry.db", "deeper/registry.db"])
    def test_a_folder_that_is_none(self, tmp_path: Path, rest: str) -> None:
        (tmp_path / "file").write_text("not a folder")
        with pytest.raises(RegistryError) as caught:
            MlflowRegistry(f"sqlite:///{tmp_path / 'file' / rest}")
        assert str(tmp_path) in caught.value.where

    def test_a_folder_that_may_not_be_written(self) -> None:
        """Nobody may make files in /proc, root included; it must not take MLflow's 100 s."""
        started = time.monotonic()
        with pytest.raises(RegistryError, match="unable to open database file"):
            MlflowRegistry("sqlite:////proc/registry.db")
        assert time.monotonic() - started < 10

    def test_a_file_that_is_no_database(self, tmp_path: Path) -> None:
        path = tmp_path / "registry.db"
        path.write_text("this is a letter, not a database" * 100)
        with pytest.raises(RegistryError, match="not a database"):
            MlflowRegistry(f"sqlite:///{path}")
        with pytest.raises(RegistryError, match="not a database"):
            still_has(f"sqlite:///{path}", "name", ["1"], {})

    def test_a_scheme_that_mlflow_does_not_know(self) -> None:
        with pytest.raises(RegistryError, match="the model registry failed"):
            MlflowRegistry("carrier-pigeon://loft").names()

    def test_a_name_that_mlflow_refuses(self, registry: MlflowRegistry, folder: Path) -> None:
        with pytest.raises(RegistryError, match="Names cannot contain"):
            register(registry, "org/name", folder, "a")
