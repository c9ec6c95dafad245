"""The registry, with a real MLflow client and its embedded SQLite store.

Opening it takes seconds (MLflow's import, its schema), so one is opened for all tests, and every
test has a model name of its own.
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

    def test_find_same(self, registry: MlflowRegistry, name: str, folder: Path) -> None:
        assert registry.find_same(name, {TUPLE_TAG: "a"}) is None
        register(registry, name, folder, "a")
        register(registry, name, folder, "b")
        found = registry.find_same(name, {TUPLE_TAG: "b"})
        assert found is not None
        assert found.version == "2"
        assert registry.find_same(name, {TUPLE_TAG: "c"}) is None


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
        move(registry, name, "1", alias="champion")
        (version,) = registry.versions(name)
        assert version.to_dict() == {
            "name": name,
            "version": "1",
            "aliases": ["champion"],
            "source": str(folder),
            "tags": {TUPLE_TAG: "a", "prepare.recipe": "r-a"},
        }

    def test_tags_are_added_and_changed(
        self, registry: MlflowRegistry, name: str, folder: Path
    ) -> None:
        register(registry, name, folder, "a")
        registry.set_tags(name, "1", {"prepare.recipe": "other", "prepare.recheck": "stands"})
        told = registry.versions(name)[0].tags
        assert told == {
            TUPLE_TAG: "a",
            "prepare.recipe": "other",
            "prepare.recheck": "stands",
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
        move(registry, name, "1", alias="champion")
        assert aliases(registry, name) == {"champion": "1"}
        move(registry, name, "2", alias="champion")
        assert aliases(registry, name) == {"champion": "2", "previous": "1"}
        move(registry, name, "3", alias="champion")
        assert aliases(registry, name) == {"champion": "3", "previous": "2"}

    def test_moving_to_where_it_is_changes_nothing(
        self, registry: MlflowRegistry, name: str, folder: Path
    ) -> None:
        for digest in "ab":
            register(registry, name, folder, digest)
        move(registry, name, "1", alias="champion")
        move(registry, name, "2", alias="champion")
        move(registry, name, "2", alias="champion")
        assert aliases(registry, name) == {"champion": "2", "previous": "1"}

    def test_one_version_may_have_both(
        self, registry: MlflowRegistry, name: str, folder: Path
    ) -> None:
        register(registry, name, folder, "a")
        move(registry, name, "1", alias="champion")
        move(registry, name, "1", alias="zweiter")
        assert registry.versions(name)[0].aliases == ("champion", "zweiter")

    def test_a_version_that_does_not_exist(
        self, registry: MlflowRegistry, name: str, folder: Path
    ) -> None:
        register(registry, name, folder, "a")
        with pytest.raises(RegistryError) as caught:
            move(registry, name, "9", alias="champion")
        assert caught.value.where == registry.uri
        assert aliases(registry, name) == {}

    def test_a_name_that_would_be_a_history(
        self, registry: MlflowRegistry, name: str, folder: Path
    ) -> None:
        with pytest.raises(RegistryError, match=rf"'{re.escape(name)}\.history'"):
            register(registry, f"{name}.history", folder, "a")


class TestHistory:
    def test_what_an_entry_says(self, registry: MlflowRegistry, name: str, folder: Path) -> None:
        for digest in "ab":
            register(registry, name, folder, digest)
        move(registry, name, "1")
        move(registry, name, "2")
        first, second = registry.history(name)
        assert (first.number, first.after, first.replaced, first.version) == (1, 0, None, "1")
        told = second.model_dump(exclude={"id", "when", "schema_version"})
        assert told == {
            "number": 2,
            "after": 1,
            "action": "promote",
            "alias": "champion",
            "previous_alias": "previous",
            "version": "2",
            "replaced": "1",
            "changes": {"previous": "1", "champion": "2"},
            "who": "ann",
            "run": "r",
            "verdict": "pass",
            "reason": "all gates passed",
        }

    def test_a_history_is_no_model_of_its_own(
        self, registry: MlflowRegistry, name: str, folder: Path
    ) -> None:
        register(registry, name, folder, "a")
        move(registry, name, "1")
        assert name in registry.names()
        assert f"{name}.history" not in registry.names()

    def test_moved_by_hand(self, registry: MlflowRegistry, name: str, folder: Path) -> None:
        """Who has seen the champion before is told that it moved, and the history tells it too."""
        for digest in "abc":
            register(registry, name, folder, digest)
        move(registry, name, "1")
        set_by_hand(registry, name, "champion", "2")
        cause = ChangeReason("promote", "bob")
        with pytest.raises(RegistryError, match=r"'champion'.* 2, .* 1,") as caught:
            registry.move_alias(name, AliasChange("champion", "3", "1", cause, "previous"))
        assert "moved by something other than prepare" in caught.value.message
        assert registry.history(name)[-1].action == "outside"
        move(registry, name, "3")
        assert aliases(registry, name) == {"champion": "3", "previous": "2"}

    def test_aliases_from_before_there_was_a_history(
        self, registry: MlflowRegistry, name: str, folder: Path
    ) -> None:
        for digest in "abc":
            register(registry, name, folder, digest)
        set_by_hand(registry, name, "previous", "1")
        set_by_hand(registry, name, "champion", "2")
        registry.roll_back(name, "champion", ChangeReason("rollback", "ann"))
        assert aliases(registry, name) == {"champion": "1"}
        assert [e.action for e in registry.history(name)] == ["outside", "rollback"]

    def test_a_champion_that_was_deleted(
        self, registry: MlflowRegistry, name: str, folder: Path
    ) -> None:
        """MLflow takes its aliases away; one can still go back to the one before."""
        for digest in "ab":
            register(registry, name, folder, digest)
        move(registry, name, "1")
        move(registry, name, "2")
        delete(registry, name, "2")
        registry.settle(name)
        assert aliases(registry, name) == {"previous": "1"}
        registry.roll_back(name, "champion", ChangeReason("rollback", "ann"), to="1")
        assert aliases(registry, name) == {"champion": "1"}

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


class TestRollBack:
    def back(self, registry: MlflowRegistry, name: str, **how: str) -> HistoryEntry:
        return registry.roll_back(
            name, "champion", ChangeReason("rollback", "ann", reason="bad"), **how
        )

    def test_step_by_step_to_the_first(
        self, registry: MlflowRegistry, name: str, folder: Path
    ) -> None:
        for digest in "abc":
            register(registry, name, folder, digest)
        for version in "12312":
            move(registry, name, version)
        seen = []
        for _ in range(4):
            self.back(registry, name)
            seen.append(aliases(registry, name))
        assert seen == [
            {"champion": "1", "previous": "3"},
            {"champion": "3", "previous": "2"},
            {"champion": "2", "previous": "1"},
            {"champion": "1"},
        ]
        with pytest.raises(RegistryError, match="'champion'"):
            self.back(registry, name)

    def test_to_a_version(self, registry: MlflowRegistry, name: str, folder: Path) -> None:
        for digest in "abcd":
            register(registry, name, folder, digest)
        for version in "123":
            move(registry, name, version)
        self.back(registry, name, to="1")
        assert aliases(registry, name) == {"champion": "1"}
        self.back(registry, name, to="4")  # was never champion
        assert aliases(registry, name) == {"champion": "4", "previous": "1"}
        with pytest.raises(RegistryError, match=r"'champion'.* 4 "):
            self.back(registry, name, to="4")
        with pytest.raises(RegistryError, match="version 9 "):
            self.back(registry, name, to="9")

    def test_only_from_the_version_that_was_seen(
        self, registry: MlflowRegistry, name: str, folder: Path
    ) -> None:
        for digest in "ab":
            register(registry, name, folder, digest)
        move(registry, name, "1")
        move(registry, name, "2")
        with pytest.raises(RegistryError, match=r"'champion'.* 2, .* 1,"):
            self.back(registry, name, replaces="1")
        assert aliases(registry, name) == {"champion": "2", "previous": "1"}

    def test_the_candidate_is_none_once_it_is_champion(
        self, registry: MlflowRegistry, name: str, folder: Path
    ) -> None:
        for digest in "ab":
            register(registry, name, folder, digest)
        cause = ChangeReason("promote", "ann")
        move(registry, name, "1")
        registry.move_alias(name, AliasChange("candidate", "2", None, cause))
        assert aliases(registry, name) == {"champion": "1", "candidate": "2"}
        move(registry, name, "2")
        assert aliases(registry, name) == {"champion": "2", "previous": "1"}


class TestFetch:
    def test_every_file_is_copied(
        self, registry: MlflowRegistry, name: str, folder: Path, tmp_path: Path
    ) -> None:
        (folder / "deeper").mkdir(parents=True)
        (folder / "deeper" / "file").write_text("content")
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").touch()
        register(registry, name, folder, "a")
        (tmp_path / "copy").mkdir()
        registry.fetch(registry.versions(name)[0], tmp_path / "copy")
        assert (tmp_path / "copy" / "deeper" / "file").read_text() == "content"

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
        move(registry, name, "1", alias="champion")
        assert still_has(registry.uri, name, ["1"], {"champion": "1"})
        assert not still_has(registry.uri, name, ["1"], {"champion": "2"})
        move(registry, name, "2", alias="champion")
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
