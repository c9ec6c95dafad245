"""What every registry must do: versions, aliases, history, rollback, fetching.

A new registry is another subclass of `Backend` here. Races and kills are in `test_alias_races.py`.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hub_write_stand_in import HubWriteStandIn, point_there
from outside import install, on_the_path

from artifacts.registry.history import HistoryEntry
from artifacts.registry.oci_layout_registry import OciLayoutRegistry
from artifacts.registry.registry import EVIDENCE_TAG, TUPLE_TAG, AliasChange, ChangeReason
from artifacts.registry.registry_address import check_registry, open_registry, still_has
from pipeline.core.errors import RegistryError
from pipeline.core.plugins import REGISTRIES, plugin_names

# huggingface_hub 2.4 uploads by an option that its HTTP library is about to give up.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
REF = "org.opencontainers.image.ref.name"
FILES = {"model.safetensors": b"w", "config.json": b"{}", "README.md": b"", "deeper/file": b"text"}
REASON = ChangeReason("promote", "ann", run="r", verdict="pass", reason="all gates passed")


class Backend(ABC):
    """A registry of one kind, the weights to register, and what other programs do to it."""

    name: ClassVar[str] = "it's model 1.5"

    def __init__(self, folder: Path) -> None:
        self.weights = folder / "weights"
        for path, content in FILES.items():
            (self.weights / path).parent.mkdir(parents=True, exist_ok=True)
            (self.weights / path).write_bytes(content)
        self.uri = self.address(folder / "made on first use")
        check_registry(self.uri, self.name)
        self.registry = open_registry(self.uri)
        self.registry.patience_seconds = min(self.registry.patience_seconds, 0.05)

    @abstractmethod
    def address(self, folder: Path) -> str:
        """Address of a registry that does not exist yet."""

    @abstractmethod
    def point(self, alias: str, version: str) -> None:
        """Move an alias without prepare."""

    @abstractmethod
    def delete(self, version: str) -> None:
        """Remove a version, and the aliases that point to it."""

    def register(self, digests: str, **tags: str) -> list[str]:
        """Register a version of each one-letter tuple digest; returns their numbers."""
        every = [{TUPLE_TAG: digest, **tags} for digest in digests]
        return [self.registry.register(self.name, self.weights, each) for each in every]

    def move(self, version: str, alias: str = "champion") -> HistoryEntry | None:
        """Move an alias from wherever it is."""
        change = AliasChange(alias, version, self.aliases().get(alias), REASON, "previous")
        return self.registry.move_alias(self.name, change)

    def roll_back(self, **how: str) -> HistoryEntry:
        cause = ChangeReason("rollback", "ann", reason="bad")
        return self.registry.roll_back(self.name, "champion", cause, **how)

    def aliases(self) -> dict[str, str]:
        found = self.registry.aliases(self.name)
        versions = self.registry.versions(self.name)
        assert {alias: v.version for v in versions for alias in v.aliases} == found
        return found

    def has(self, versions: list[str], **aliases: str) -> bool:
        return still_has(self.uri, self.name, versions, aliases)


class MlflowBackend(Backend):
    def address(self, folder: Path) -> str:
        return f"sqlite:///{folder / 'registry.db'}"

    def point(self, alias: str, version: str) -> None:
        self.client().set_registered_model_alias(self.name, alias, version)

    def delete(self, version: str) -> None:
        self.client().delete_model_version(self.name, version)

    def client(self) -> Any:
        from mlflow.tracking import MlflowClient

        return MlflowClient(tracking_uri=self.uri, registry_uri=self.uri)


class OciBackend(Backend):
    def address(self, folder: Path) -> str:
        return f"oci://{folder}"

    def point(self, alias: str, version: str) -> None:
        lines = self.lines()
        (line,) = [each for each in lines if each["annotations"][REF] == f"v{version}"]
        others = [each for each in lines if each["annotations"][REF] != alias]
        self.write([*others, {**line, "annotations": {REF: alias}}])

    def delete(self, version: str) -> None:
        lines = self.lines()
        (line,) = [each for each in lines if each["annotations"][REF] == f"v{version}"]
        self.write([each for each in lines if each["digest"] != line["digest"]])

    @property
    def index(self) -> Path:
        assert isinstance(self.registry, OciLayoutRegistry)
        return self.registry.folder / self.name / "index.json"

    def lines(self) -> list[dict[str, Any]]:
        return list(json.loads(self.index.read_text())["manifests"])

    def write(self, lines: list[dict[str, Any]]) -> None:
        index = json.loads(self.index.read_text())
        self.index.write_text(json.dumps({**index, "manifests": lines}))


class OutsideBackend(OciBackend):
    def address(self, folder: Path) -> str:
        return f"outside://{folder}"


class HubBackend(Backend):
    name = "smol"
    hub: HubWriteStandIn

    def address(self, folder: Path) -> str:
        return "hf://acme"

    @property
    def refs(self) -> dict[str, str]:
        return self.hub.models[f"acme/{self.name}"].tags

    def point(self, alias: str, version: str) -> None:
        self.refs[alias] = self.refs[f"v{version}"]

    def delete(self, version: str) -> None:
        commit = self.refs[f"v{version}"]
        for ref in [ref for ref, its in self.refs.items() if its == commit]:
            del self.refs[ref]


BACKENDS = {"hf": HubBackend, "mlflow": MlflowBackend, "oci": OciBackend, "outside": OutsideBackend}


@pytest.fixture(params=BACKENDS)
def backend(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Backend]:
    with ExitStack() as stack:
        if request.param == "outside":
            install(tmp_path / "site")
            stack.enter_context(on_the_path(tmp_path / "site"))
        elif request.param == "hf":
            HubBackend.hub = stack.enter_context(HubWriteStandIn())
            point_there(monkeypatch, HubBackend.hub.url)
        yield BACKENDS[request.param](tmp_path)


def test_every_registry_is_here() -> None:
    assert [*plugin_names(REGISTRIES), "outside"] == sorted(BACKENDS)


def test_what_is_not_there(backend: Backend) -> None:
    registry, name = backend.registry, backend.name
    assert registry.names() == []
    assert registry.versions(name) == registry.history(name) == registry.settle(name) == []
    assert registry.aliases(name) == {}
    assert not registry.has_version(name, "1")
    assert not backend.has(["1"])


class TestRegister:
    def test_a_version(self, backend: Backend) -> None:
        assert backend.register("a", recipe="r") == ["1"]
        (version,) = backend.registry.versions(backend.name)
        assert (version.name, version.version, version.aliases) == (backend.name, "1", ())
        assert version.source
        assert version.tags == {TUPLE_TAG: "a", "recipe": "r"}
        assert backend.registry.names() == [backend.name]
        assert open_registry(backend.uri).versions(backend.name) == [version]

    def test_the_same_tuple_and_evidence_again(self, backend: Backend) -> None:
        assert backend.register("abab") == ["1", "2", "1", "2"]
        assert backend.register("a", **{EVIDENCE_TAG: "other"}) == ["3"]
        found = backend.registry.find_same(backend.name, {TUPLE_TAG: "b"})
        assert found is not None
        assert found.version == "2"
        assert backend.registry.find_same(backend.name, {TUPLE_TAG: "c"}) is None

    def test_newest_first_by_number(self, backend: Backend) -> None:
        backend.register("abcdefghijk")
        numbers = [version.version for version in backend.registry.versions(backend.name)]
        assert numbers == [str(n) for n in range(11, 0, -1)]

    def test_a_number_is_given_once(self, backend: Backend) -> None:
        backend.register("ab")
        backend.delete("2")
        assert not backend.has(["2"])
        assert backend.has(["1"])
        assert backend.register("b") == ["3"]

    def test_tags_are_added_and_changed(self, backend: Backend) -> None:
        backend.register("ab", recipe="r")
        backend.registry.set_tags(backend.name, "2", {"recipe": "other", "recheck": "stands"})
        second, first = backend.registry.versions(backend.name)
        assert second.tags == {TUPLE_TAG: "b", "recipe": "other", "recheck": "stands"}
        assert first.tags == {TUPLE_TAG: "a", "recipe": "r"}
        with pytest.raises(RegistryError):
            backend.registry.set_tags(backend.name, "9", {"a": "b"})

    def test_every_file_is_fetched(self, backend: Backend, tmp_path: Path) -> None:
        backend.register("a")
        copy = tmp_path / "copy"
        copy.mkdir()
        backend.registry.fetch(backend.registry.versions(backend.name)[0], copy)
        files = [path for path in copy.rglob("*") if path.is_file()]
        assert {path.relative_to(copy).as_posix(): path.read_bytes() for path in files} == FILES


class TestAliases:
    def test_previous_keeps_the_one_before(self, backend: Backend) -> None:
        backend.register("abc")
        seen = []
        for version in "1233":  # moving to where it is changes nothing
            backend.move(version)
            seen.append(backend.aliases())
        last = {"champion": "3", "previous": "2"}
        assert seen == [{"champion": "1"}, {"champion": "2", "previous": "1"}, last, last]
        assert backend.has(["1", "2"], **last)
        assert not backend.has(["1"], champion="2")
        assert not backend.has(["1", "4"])

    def test_one_version_may_have_both(self, backend: Backend) -> None:
        backend.register("a")
        backend.move("1")
        backend.move("1", alias="zweiter")
        assert backend.registry.versions(backend.name)[0].aliases == ("champion", "zweiter")

    def test_a_version_that_does_not_exist(self, backend: Backend) -> None:
        backend.register("a")
        with pytest.raises(RegistryError, match="version 9"):
            backend.move("9")
        assert backend.aliases() == {}

    def test_the_candidate_is_none_once_it_is_champion(self, backend: Backend) -> None:
        backend.register("ab")
        backend.move("1")
        candidate = AliasChange("candidate", "2", None, ChangeReason("promote", "ann"))
        backend.registry.move_alias(backend.name, candidate)
        assert backend.aliases() == {"champion": "1", "candidate": "2"}
        backend.move("2")
        assert backend.aliases() == {"champion": "2", "previous": "1"}

    def test_only_from_the_version_that_was_seen(self, backend: Backend) -> None:
        backend.register("abc")
        backend.move("1")
        backend.move("2")
        change = AliasChange("champion", "3", "1", REASON, "previous")
        with pytest.raises(RegistryError, match=r"'champion'.* 2, .* 1,"):
            backend.registry.move_alias(backend.name, change)
        with pytest.raises(RegistryError, match=r"'champion'.* 2, .* 1,"):
            backend.roll_back(replaces="1")
        assert backend.aliases() == {"champion": "2", "previous": "1"}


class TestHistory:
    def test_entries(self, backend: Backend) -> None:
        backend.register("ab")
        backend.move("1")
        backend.move("2")
        first, second = backend.registry.history(backend.name)
        assert (first.number, first.after, first.replaced, first.version) == (1, 0, None, "1")
        assert second.model_dump(exclude={"id", "when", "schema_version"}) == {
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
        assert open_registry(backend.uri).history(backend.name) == [first, second]
        assert backend.registry.names() == [backend.name]

    def test_moved_without_prepare(self, backend: Backend) -> None:
        backend.register("abc")
        backend.move("1")
        backend.point("champion", "2")
        change = AliasChange("champion", "3", "1", ChangeReason("promote", "bob"), "previous")
        with pytest.raises(RegistryError, match=r"'champion'.* 2, .* 1,"):
            backend.registry.move_alias(backend.name, change)
        actions = [entry.action for entry in backend.registry.history(backend.name)]
        assert actions == ["promote", "outside"]
        backend.move("3")
        assert backend.aliases() == {"champion": "3", "previous": "2"}

    def test_aliases_older_than_the_history(self, backend: Backend) -> None:
        backend.register("ab")
        backend.point("previous", "1")
        backend.point("champion", "2")
        backend.roll_back()
        assert backend.aliases() == {"champion": "1"}
        actions = [entry.action for entry in backend.registry.history(backend.name)]
        assert actions == ["outside", "rollback"]

    def test_a_champion_that_was_deleted(self, backend: Backend) -> None:
        backend.register("ab")
        backend.move("1")
        backend.move("2")
        backend.delete("2")
        backend.registry.settle(backend.name)
        assert backend.aliases() == {"previous": "1"}
        backend.roll_back(to="1")
        assert backend.aliases() == {"champion": "1"}


class TestRollBack:
    def test_step_by_step_to_the_first(self, backend: Backend) -> None:
        backend.register("abc")
        for version in "12312":
            backend.move(version)
        seen = []
        for _ in range(4):
            backend.roll_back()
            seen.append(backend.aliases())
        assert seen == [
            {"champion": "1", "previous": "3"},
            {"champion": "3", "previous": "2"},
            {"champion": "2", "previous": "1"},
            {"champion": "1"},
        ]
        with pytest.raises(RegistryError, match="'champion'"):
            backend.roll_back()

    def test_to_a_version(self, backend: Backend) -> None:
        backend.register("abcd")
        for version in "123":
            backend.move(version)
        backend.roll_back(to="1")
        assert backend.aliases() == {"champion": "1"}
        backend.roll_back(to="4")  # was never champion
        assert backend.aliases() == {"champion": "4", "previous": "1"}
        with pytest.raises(RegistryError, match=r"'champion'.* 4 "):
            backend.roll_back(to="4")
        with pytest.raises(RegistryError, match="version 9 "):
            backend.roll_back(to="9")
