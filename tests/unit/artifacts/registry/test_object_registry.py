"""The registry in an object store: what is written, what is found by others, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from artifacts.registry.history import Cause, HistoryEntry, Move, replay
from artifacts.registry.object_registry import ObjectRegistry
from artifacts.registry.registry import EVIDENCE_TAG, TUPLE_TAG
from artifacts.registry.registry_address import check_registry, open_registry, still_has
from pipeline.core import object_store
from pipeline.core.errors import RegistryError
from pipeline.core.object_store import ObjectStore

NAME = "model-1.5"
VERSIONS = ("1", "2", "3", "4")


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return f"store+file://{tmp_path}/bucket/made on first use"


@pytest.fixture
def registry(uri: str) -> ObjectRegistry:
    opened = open_registry(uri)
    assert isinstance(opened, ObjectRegistry)
    return opened


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "weights"
    (path / "prepare-evidence").mkdir(parents=True)
    (path / "model.safetensors").write_bytes(b"weights")
    (path / "prepare-evidence" / "manifest.json").write_text("{}")
    (path / "empty").touch()
    return path


def register(registry: ObjectRegistry, folder: Path, digest: str, **tags: str) -> str:
    return registry.register(NAME, folder, {TUPLE_TAG: digest, **tags})


def promote(registry: ObjectRegistry, version: str, replaces: str | None) -> HistoryEntry | None:
    cause = Cause("promote", "ann", run="r", verdict="pass")
    return registry.move_alias(NAME, Move("champion", version, replaces, cause, "previous"))


def test_what_one_machine_promotes_another_finds(
    registry: ObjectRegistry, uri: str, folder: Path, tmp_path: Path
) -> None:
    assert registry.versions(NAME) == []
    assert registry.names() == []
    first, second = (register(registry, folder, digest) for digest in ("a", "b"))
    promote(registry, first, None)
    promote(registry, second, first)
    elsewhere = ObjectRegistry(uri)
    assert elsewhere.names() == [NAME]
    assert elsewhere.aliases(NAME) == {"champion": second, "previous": first}
    found = elsewhere.versions(NAME)
    assert [(v.version, v.aliases) for v in found] == [("2", ("champion",)), ("1", ("previous",))]
    assert still_has(uri, NAME, [first, second], {"champion": second})
    assert not still_has(uri, NAME, [first], {"champion": first})
    (tmp_path / "pulled").mkdir()
    elsewhere.fetch(found[0], tmp_path / "pulled")
    copied = {p.relative_to(tmp_path / "pulled"): p for p in (tmp_path / "pulled").rglob("*")}
    assert {str(p): f.read_bytes() for p, f in copied.items() if f.is_file()} == {
        "model.safetensors": b"weights",
        "prepare-evidence/manifest.json": b"{}",
        "empty": b"",
    }


def test_content_is_sent_once(
    registry: ObjectRegistry, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    upload = ObjectStore.upload

    def note(self: ObjectStore, file: Path, name: str) -> None:
        sent.append(file.name)
        upload(self, file, name)

    monkeypatch.setattr(ObjectStore, "upload", note)
    register(registry, folder, "a")
    (folder / "model.safetensors").rename(folder / "renamed.safetensors")
    register(registry, folder, "b")
    assert sorted(sent) == ["empty", "manifest.json", "model.safetensors"]
    assert len(registry.blobs_in_use()) == 3


def test_the_same_version_is_used_again(registry: ObjectRegistry, folder: Path) -> None:
    first = register(registry, folder, "a", **{EVIDENCE_TAG: "e"})
    assert register(registry, folder, "a", **{EVIDENCE_TAG: "e"}) == first
    assert register(registry, folder, "a", **{EVIDENCE_TAG: "another"}) != first


def test_tags_are_added_by_several_and_the_last_one_holds(
    registry: ObjectRegistry, uri: str, folder: Path
) -> None:
    version, other = register(registry, folder, "a", kept="k"), ObjectRegistry(uri)
    registry.set_tags(NAME, version, {"one": "1", "both": "first"})
    other.set_tags(NAME, version, {"two": "2", "both": "last"})
    for each in (registry, other):
        tags = each.versions(NAME)[0].tags
        assert tags == {TUPLE_TAG: "a", "kept": "k", "one": "1", "two": "2", "both": "last"}
    with pytest.raises(RegistryError, match="version 7"):
        registry.set_tags(NAME, "7", {"a": "b"})


def test_an_alias_moves_only_from_what_the_mover_saw(
    registry: ObjectRegistry, uri: str, folder: Path
) -> None:
    for digest in "abc":
        register(registry, folder, digest)
    promote(registry, "1", None)
    late = ObjectRegistry(uri)
    state = replay(late.entries(NAME))
    promote(registry, "2", "1")
    lost = HistoryEntry.model_validate(
        {**registry.history(NAME)[-1].model_dump(), "id": "late", "after": state.last}
    )
    late.append(NAME, lost.model_copy(update={"version": "3", "changes": {"champion": "3"}}))
    assert registry.aliases(NAME) == {"champion": "2", "previous": "1"}
    with pytest.raises(RegistryError, match=r"is version 2, not version 1.*moved by ann"):
        promote(late, "3", "1")
    assert len(registry.history(NAME)) == 2


STEPS = st.lists(
    st.tuples(st.sampled_from(["promote", "roll back"]), st.sampled_from(VERSIONS), st.booleans()),
    max_size=8,
)


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bucket of a registry with four versions."""
    folder = tmp_path_factory.mktemp("several")
    (folder / "weights").mkdir()
    (folder / "weights" / "model.safetensors").write_bytes(b"w")
    for digest in "abcd":
        register(ObjectRegistry(f"store+file://{folder}/bucket"), folder / "weights", digest)
    return folder / "bucket"


@settings(max_examples=25, deadline=None)
@given(steps=STEPS)
def test_aliases_are_what_two_machines_have_made_of_them(
    steps: list[tuple[str, str, bool]], several: Path
) -> None:
    """Whoever moves them, in whatever order, as one list of moves would have it."""
    for entry in several.glob("registry/*/history/*"):
        entry.unlink()
    machines = [ObjectRegistry(f"store+file://{several}") for _ in range(2)]
    way: list[str] = []
    for kind, version, second in steps:
        machine = machines[second]
        if kind == "promote":
            promote(machine, version, way[-1] if way else None)
            way += [version] if way[-1:] != [version] else []
        elif len(way) > 1:
            machine.roll_back(NAME, "champion", Cause("rollback", "ann"))
            way.pop()
    for machine in machines:
        assert machine.aliases(NAME).get("champion") == (way[-1] if way else None)
        assert machine.settle(NAME) == []


def test_a_number_is_given_once_also_where_its_version_was_deleted(
    registry: ObjectRegistry, folder: Path, tmp_path: Path
) -> None:
    register(registry, folder, "a")
    promote(registry, register(registry, folder, "b"), None)
    (deleted,) = tmp_path.glob("bucket/*/registry/*/versions/000002.json")
    deleted.unlink()
    assert register(registry, folder, "c") == "3"


@pytest.mark.parametrize("what", ["versions", "history", "tags"])
def test_what_somebody_damaged_is_named(
    what: str, registry: ObjectRegistry, uri: str, folder: Path, tmp_path: Path
) -> None:
    promote(registry, register(registry, folder, "a"), None)
    registry.set_tags(NAME, "1", {"a": "b"})
    (damaged,) = tmp_path.glob(f"bucket/*/registry/*/{what}/*")
    damaged.write_text('{"files": {"../../etc/passwd": {}}}')
    with pytest.raises(RegistryError) as caught:
        ObjectRegistry(uri).versions(NAME)
    assert what in caught.value.where


def test_files_never_leave_their_folder(
    registry: ObjectRegistry, uri: str, folder: Path, tmp_path: Path
) -> None:
    register(registry, folder, "a")
    (version,) = tmp_path.glob("bucket/*/registry/*/versions/*")
    version.write_text(version.read_text().replace("model.safetensors", "../outside"))
    with pytest.raises(RegistryError, match="outside"):
        ObjectRegistry(uri).versions(NAME)


def test_content_that_is_gone_or_damaged_is_not_handed_out(
    registry: ObjectRegistry, folder: Path, tmp_path: Path
) -> None:
    register(registry, folder, "a")
    (version,) = registry.versions(NAME)
    blob = next(b for b in tmp_path.glob("bucket/*/blobs/*") if b.read_bytes() == b"weights")
    (tmp_path / "pulled").mkdir()
    blob.write_bytes(b"others")
    with pytest.raises(RegistryError, match="is damaged"):
        registry.fetch(version, tmp_path / "pulled")
    blob.unlink()
    with pytest.raises(RegistryError, match="is gone"):
        registry.fetch(version, tmp_path / "pulled")


@pytest.mark.parametrize("name", ["a/b", "..", "-x", "a b", ""])
def test_names_that_are_none(name: str, registry: ObjectRegistry, folder: Path) -> None:
    with pytest.raises(RegistryError):
        registry.register(name, folder, {})
    with pytest.raises(RegistryError):
        registry.check_writable(name)
    assert registry.versions(name) == []


@pytest.mark.parametrize("uri", ["store+sftp://x/y", "store+", "store+s3://key:word@b/x"])
def test_urls_that_are_none(uri: str) -> None:
    with pytest.raises(RegistryError):
        check_registry(uri, NAME)


def test_a_server_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store, "PATIENCE_SECONDS", 0.0)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
        monkeypatch.setenv(name, "x")
    with pytest.raises(RegistryError):
        check_registry("store+s3://bucket/prefix", NAME)
