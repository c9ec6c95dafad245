"""The registry in a folder of OCI layouts: what is written, and what is refused."""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

import jsonschema
import oras.schemas
import pytest
from oras.layout import Layout

from artifacts.registry import oci_layout
from artifacts.registry.oci_layout import OciLayout
from artifacts.registry.oci_layout_registry import OciLayoutRegistry
from artifacts.registry.registry import (
    TUPLE_TAG,
    AliasChange,
    ChangeReason,
    HistoryEntry,
)
from artifacts.registry.registry_address import open_registry
from pipeline.core.errors import RegistryError

NAME = "it's model 1.5"
REF = "org.opencontainers.image.ref.name"


@pytest.fixture
def registry(tmp_path: Path) -> OciLayoutRegistry:
    opened = open_registry(f"oci://{tmp_path / 'made on first use'}")
    assert isinstance(opened, OciLayoutRegistry)
    return opened


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "weights"
    (path / "prepare-evidence").mkdir(parents=True)
    (path / "model.safetensors").write_bytes(b"weights")
    (path / "config.json").write_text('{"model_type": "llama"}')
    (path / "prepare-evidence" / "manifest.json").write_text("{}")
    (path / "empty").touch()
    return path


def register(registry: OciLayoutRegistry, folder: Path, digest: str, **tags: str) -> str:
    return registry.register(NAME, folder, {TUPLE_TAG: digest, "prepare.recipe": "r", **tags})


def move(registry: OciLayoutRegistry, version: str, alias: str = "champion") -> HistoryEntry | None:
    """Move it from wherever it is."""
    cause = ChangeReason("promote", "ann", run="r", verdict="pass", reason="all gates passed")
    replaces = registry.aliases(NAME).get(alias)
    return registry.move_alias(NAME, AliasChange(alias, version, replaces, cause, "previous"))


def index_of(registry: OciLayoutRegistry) -> dict[str, Any]:
    return json.loads((registry.folder / NAME / "index.json").read_text())


def write_index(registry: OciLayoutRegistry, index: dict[str, Any]) -> None:
    (registry.folder / NAME / "index.json").write_text(json.dumps(index))


def set_by_hand(registry: OciLayoutRegistry, alias: str, digest: str) -> None:
    """As `skopeo copy` or `oras tag` would."""
    index = index_of(registry)
    (line,) = [d for d in index["manifests"] if d["annotations"][REF] == "v1"]
    kept = [d for d in index["manifests"] if d["annotations"][REF] != alias]
    write_index(
        registry,
        {**index, "manifests": [*kept, {**line, "digest": digest, "annotations": {REF: alias}}]},
    )


class TestLayout:
    def test_is_one_by_the_rules_of_oci(self, registry: OciLayoutRegistry, folder: Path) -> None:
        """Held against oras' reading of them, every digest and size recomputed."""
        for digest in "ab":
            move(registry, register(registry, folder, digest))
        root = registry.folder / NAME
        Layout(str(root)).validate()
        index = index_of(registry)
        jsonschema.validate(index, oras.schemas.index)
        blobs = {f"sha256:{path.name}": path for path in (root / "blobs" / "sha256").iterdir()}
        for digest, path in blobs.items():
            assert hashlib.sha256(path.read_bytes()).hexdigest() == digest.partition(":")[2]
        named = set()
        for line in index["manifests"]:
            manifest = json.loads(blobs[line["digest"]].read_bytes())
            jsonschema.validate(manifest, oras.schemas.manifest)
            assert line["mediaType"] == manifest["mediaType"]
            assert line["artifactType"] == manifest["artifactType"]
            for each in (line, manifest["config"], *manifest["layers"]):
                assert blobs[each["digest"]].stat().st_size == each["size"]
                named.add(each["digest"])
        assert named == set(blobs)
        assert {line["annotations"][REF]: line["digest"] for line in index["manifests"]} == {
            "v1": registry.versions(NAME)[1].source.rpartition("@")[2],
            "v2": registry.versions(NAME)[0].source.rpartition("@")[2],
            "previous": registry.versions(NAME)[1].source.rpartition("@")[2],
            "champion": registry.versions(NAME)[0].source.rpartition("@")[2],
        }

    def test_a_file_that_two_versions_share_is_kept_once(
        self, registry: OciLayoutRegistry, folder: Path
    ) -> None:
        register(registry, folder, "a")
        (folder / "config.json").write_text('{"model_type": "qwen2"}')
        before = set((registry.folder / NAME / "blobs" / "sha256").iterdir())
        register(registry, folder, "b")
        after = set((registry.folder / NAME / "blobs" / "sha256").iterdir())
        assert len(after - before) == 3  # config.json, the model's description, the manifest

    def test_the_blobs_share_no_inode_with_the_store(
        self, registry: OciLayoutRegistry, folder: Path
    ) -> None:
        register(registry, folder, "a")
        assert all(path.stat().st_nlink == 1 for path in folder.rglob("*") if path.is_file())

    def test_a_copy_that_shares_blocks(
        self, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What XFS and Btrfs do in the kernel, done by hand: the blob's digest is the file's."""

        def clone(target: int, request: int, source: int) -> int:
            assert request == oci_layout.FICLONE
            return os.write(target, os.read(source, 1 << 20))

        monkeypatch.setattr(oci_layout.fcntl, "ioctl", clone)
        layout = OciLayout(tmp_path / "layout")
        layout.make()
        with layout.open_for_writing() as partial:
            blob = layout.put_file(folder / "config.json", partial)
        assert layout.read_blob(blob) == (folder / "config.json").read_bytes()

    def test_a_layout_of_somebody_else_is_left_out(
        self, registry: OciLayoutRegistry, folder: Path
    ) -> None:
        register(registry, folder, "a")
        OciLayout(registry.folder / "theirs").make()
        (registry.folder / "a file").touch()
        assert registry.names() == [NAME]


class TestRegister:
    def test_a_version_used_again_stays_as_it_is(
        self, registry: OciLayoutRegistry, folder: Path
    ) -> None:
        register(registry, folder, "a", policy="demo", kept="yes")
        (before,) = registry.versions(NAME)
        register(registry, folder, "a", policy="default")
        (after,) = registry.versions(NAME)
        assert after.source == before.source
        assert after.tags == before.tags
        assert after.tags["kept"] == "yes"

    def test_an_empty_folder(self, registry: OciLayoutRegistry, tmp_path: Path) -> None:
        (tmp_path / "nothing").mkdir()
        with pytest.raises(RegistryError, match=re.escape(f"'{NAME}'")):
            register(registry, tmp_path / "nothing", "a")
        assert registry.names() == []

    @pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "org/name", "a\0b"])
    def test_a_name_that_is_no_folder(
        self, registry: OciLayoutRegistry, folder: Path, name: str
    ) -> None:
        with pytest.raises(RegistryError, match=re.escape(f"'{name}'")):
            registry.register(name, folder, {})

    def test_asking_makes_nothing(self, registry: OciLayoutRegistry) -> None:
        assert registry.names() == []
        assert registry.versions(NAME) == []
        assert registry.aliases(NAME) == {}
        assert registry.settle(NAME) == []
        assert registry.history(NAME) == []
        assert not registry.folder.exists()

    @pytest.mark.parametrize("uri", ["oci://host/models", "oci://relative", "oci://"])
    def test_a_registry_of_the_network_is_no_registry_here(self, uri: str) -> None:
        with pytest.raises(RegistryError) as caught:
            open_registry(uri)
        assert caught.value.where == uri
        assert "prepare push" in caught.value.hint

    def test_a_folder_that_may_not_be_written(self, folder: Path) -> None:
        with pytest.raises(RegistryError) as caught:
            register(OciLayoutRegistry("oci:///proc/registry"), folder, "a")
        assert caught.value.where.startswith("/proc/registry")


class TestTags:
    def test_are_set_without_another_manifest(
        self, registry: OciLayoutRegistry, folder: Path
    ) -> None:
        register(registry, folder, "a")
        (before,) = registry.versions(NAME)
        registry.set_tags(NAME, "1", {"prepare.recheck": "holds", "prepare.recipe": "other"})
        (after,) = registry.versions(NAME)
        assert after.source == before.source
        assert after.tags == {**before.tags, "prepare.recheck": "holds", "prepare.recipe": "other"}

    def test_of_an_alias_are_the_version_s(self, registry: OciLayoutRegistry, folder: Path) -> None:
        """An alias moved after tags were set does not take them for its own."""
        register(registry, folder, "a")
        registry.set_tags(NAME, "1", {"prepare.recheck": "holds"})
        move(registry, "1")
        (line,) = [
            d for d in index_of(registry)["manifests"] if d["annotations"][REF] == "champion"
        ]
        assert line["annotations"] == {REF: "champion"}
        assert registry.versions(NAME)[0].aliases == ("champion",)

    def test_names_of_other_standards(self, registry: OciLayoutRegistry, folder: Path) -> None:
        register(registry, folder, "a")
        with pytest.raises(RegistryError) as caught:
            registry.set_tags(NAME, "1", {REF: "v2"})
        assert caught.value.where == REF
        with pytest.raises(RegistryError) as caught:
            register(registry, folder, "b", **{REF: "v2"})
        assert caught.value.where == REF


class TestAliases:
    def test_pointed_to_a_manifest_that_is_no_version(
        self, registry: OciLayoutRegistry, folder: Path
    ) -> None:
        register(registry, folder, "a")
        move(registry, "1")
        set_by_hand(registry, "champion", f"sha256:{'0' * 64}")
        assert registry.aliases(NAME) == {}
        registry.settle(NAME)
        assert [(e.action, e.version) for e in registry.history(NAME)] == [
            ("promote", "1"),
            ("outside", None),
        ]
        move(registry, "1")
        assert registry.aliases(NAME) == {"champion": "1"}
        assert [d["annotations"][REF] for d in index_of(registry)["manifests"]].count(
            "champion"
        ) == 1

    @pytest.mark.parametrize("alias", ["v1", "v22", "", "a b", "a/b", "ä", ".a", "a" * 129])
    def test_that_cannot_be_a_tag(
        self, registry: OciLayoutRegistry, folder: Path, alias: str
    ) -> None:
        """Refused before the entry: one that is written must be carried out."""
        register(registry, folder, "a")
        with pytest.raises(RegistryError, match=f"'{alias}'"):
            move(registry, "1", alias=alias)
        assert registry.versions(NAME)[0].version == "1"
        assert registry.history(NAME) == []

    def test_of_a_version_that_is_none(self, registry: OciLayoutRegistry, folder: Path) -> None:
        register(registry, folder, "a")
        with pytest.raises(RegistryError, match="version 2"):
            move(registry, "2")
        with pytest.raises(RegistryError, match="version 2 "):
            registry.set_alias(NAME, "champion", "2")


class TestHistory:
    def test_a_damaged_line_is_named(self, registry: OciLayoutRegistry, folder: Path) -> None:
        move(registry, register(registry, folder, "a"))
        file = registry.folder / NAME / "prepare-history.jsonl"
        file.write_text(file.read_text() + "{}\n")
        with pytest.raises(RegistryError) as caught:
            registry.history(NAME)
        assert caught.value.where == str(file)

    def test_lines_that_were_deleted_give_no_number_again(
        self, registry: OciLayoutRegistry, folder: Path
    ) -> None:
        """A number that was carried out once would not be carried out again."""
        for digest in "abc":
            move(registry, register(registry, folder, digest))
        file = registry.folder / NAME / "prepare-history.jsonl"
        file.write_text(file.read_text().splitlines(keepends=True)[0])
        move(registry, "2")
        numbers = [entry.number for entry in registry.history(NAME)]
        assert numbers == sorted(set(numbers))
        assert numbers[0] == 1
        assert numbers[-1] > 3
        assert registry.aliases(NAME)["champion"] == "2"

    @pytest.mark.parametrize(
        "text", ["{", "[]", "{}", '{"manifests": [3]}', '{"manifests": [], "annotations": 3}']
    )
    def test_a_damaged_index(self, registry: OciLayoutRegistry, folder: Path, text: str) -> None:
        register(registry, folder, "a")
        (registry.folder / NAME / "index.json").write_text(text)
        with pytest.raises(RegistryError, match=r"index\.json"):
            registry.versions(NAME)

    def test_a_count_that_is_no_number(self, registry: OciLayoutRegistry, folder: Path) -> None:
        register(registry, folder, "a")
        write_index(registry, index_of(registry) | {"annotations": {"prepare.applied": "x"}})
        with pytest.raises(RegistryError, match=r"prepare\.applied.*'x'"):
            registry.settle(NAME)

    def test_a_digest_that_leads_elsewhere(self, registry: OciLayoutRegistry, folder: Path) -> None:
        register(registry, folder, "a")
        index = index_of(registry)
        index["manifests"][0]["digest"] = "sha256:../../../etc/passwd"
        write_index(registry, index)
        with pytest.raises(RegistryError, match=r"sha256:\.\./"):
            registry.versions(NAME)
