"""Manifests, indexes and histories of strangers: refused as ours, or read; nothing else."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from artifacts.registry.model_pack import (
    MANIFEST_BYTES,
    Blob,
    PackedFile,
    pack,
    read_pack,
)
from artifacts.registry.oci_layout_registry import HISTORY_FILE, OciLayoutRegistry
from artifacts.registry.registry import AliasChange, ChangeReason
from pipeline.core.errors import PrepareError, RegistryError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)
MADE = json.loads(
    pack("tiny", [PackedFile("config.json", Blob.of(b"{}"))], {"prepare.tuple": "t"}, {}).manifest
)


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where each value of plain data is."""
    children = value.items() if isinstance(value, dict) else enumerate(value)
    inner = [((*path, key), child) for key, child in children]
    deeper = [p for at, child in inner if isinstance(child, dict | list) for p in paths(child, at)]
    return [at for at, _ in inner] + deeper


def changed(value: Any, path: tuple[Any, ...], to: Any) -> Any:
    copy = json.loads(json.dumps(value))
    place = copy
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = to
    return copy


def read(manifest: bytes) -> object:
    return read_pack(manifest, lambda _: b"{}")


@settings(max_examples=300, deadline=None)
@given(path=st.sampled_from(paths(MADE)), to=JSON)
def test_a_manifest_with_anything_in_a_place(path: tuple[Any, ...], to: Any) -> None:
    with contextlib.suppress(RegistryError):
        read(json.dumps(changed(MADE, path, to)).encode())


@pytest.mark.parametrize("size", [float("inf"), 10**400, -5, 1.5, True, None, "5"])
def test_a_size_that_is_none(size: Any) -> None:
    text = json.dumps(changed(MADE, ("layers", 0, "size"), size))
    with pytest.raises(RegistryError):
        read(text.encode())


@pytest.mark.parametrize(
    "path",
    ["x" * 300, "/".join("d" * 2000), "a\0b", "\x1b[2Jx", "x\n::error::", "config.json/x", "."],
)
def test_a_path_that_is_none(path: str) -> None:
    layer = changed(MADE["layers"][0], ("annotations", "org.cncf.model.filepath"), path)
    with pytest.raises(RegistryError):
        read(json.dumps({**MADE, "layers": [*MADE["layers"], layer]}).encode())


def test_more_than_registries_take() -> None:
    with pytest.raises(RegistryError, match="larger than 4 MiB"):
        read(json.dumps({**MADE, "x": "y" * MANIFEST_BYTES}).encode())


@pytest.fixture
def registry(tmp_path: Path) -> OciLayoutRegistry:
    """One version, which is the champion."""
    folder = tmp_path / "weights"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    found = OciLayoutRegistry(f"oci://{tmp_path / 'oci'}")
    version = found.register("tiny", folder, {"prepare.tuple": "t", "prepare.evidence": "e"})
    found.move_alias("tiny", AliasChange("champion", version, None, ChangeReason("promote", "ann")))
    return found


def read_all(registry: OciLayoutRegistry) -> None:
    registry.names()
    registry.history("tiny")
    for version in registry.versions("tiny"):
        registry.pack_of(version)


def test_as_registered(registry: OciLayoutRegistry) -> None:
    read_all(registry)


@pytest.mark.parametrize("name", ["index.json", HISTORY_FILE])
@pytest.mark.parametrize("kind", ["pipe", "device", "deep", "not text"])
def test_what_lies_in_the_layout(registry: OciLayoutRegistry, name: str, kind: str) -> None:
    file = registry.folder / "tiny" / name
    file.unlink()
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "device":
        file.symlink_to("/dev/zero")
    else:
        file.write_bytes(b"[" * 200_000 if kind == "deep" else b"\xff\n")
    read = registry.versions if name == "index.json" else registry.history
    with pytest.raises(RegistryError):
        read("tiny")


@pytest.mark.parametrize("blob", ["pipe", "device"])
def test_a_blob_that_is_no_file(registry: OciLayoutRegistry, blob: str, tmp_path: Path) -> None:
    (version,) = registry.versions("tiny")
    (packed,) = registry.pack_of(version).files
    file = registry.blob_path("tiny", packed.blob)
    file.unlink()
    if blob == "pipe":
        os.mkfifo(file)
    else:
        file.symlink_to("/dev/zero")
    (tmp_path / "out").mkdir()
    with pytest.raises(RegistryError):
        registry.fetch(version, tmp_path / "out")


@pytest.mark.parametrize("changes", [{"version": "99"}, {"number": -5}])
def test_a_history_that_says_two_things(
    registry: OciLayoutRegistry, changes: dict[str, Any]
) -> None:
    with pytest.raises(RegistryError) as caught:
        edited(registry, changes).history("tiny")
    assert caught.value.where.endswith("prepare-history.jsonl")


def test_a_history_of_a_version_that_never_was(registry: OciLayoutRegistry) -> None:
    changes = {"version": "99", "changes": {"champion": "99"}}
    with pytest.raises(RegistryError, match="'99'"):
        edited(registry, changes).history("tiny")


def edited(registry: OciLayoutRegistry, changes: dict[str, Any]) -> OciLayoutRegistry:
    file = registry.folder / "tiny" / HISTORY_FILE
    entry = json.loads(file.read_text().splitlines()[0])
    file.write_text(json.dumps(entry | changes) + "\n")
    return registry


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_an_index_with_anything_in_a_place(
    registry: OciLayoutRegistry, data: st.DataObject
) -> None:
    file = registry.folder / "tiny" / "index.json"
    before = file.read_bytes()
    index = json.loads(before)
    path = data.draw(st.sampled_from(paths(index)))
    try:
        file.write_text(json.dumps(changed(index, path, data.draw(JSON))))
        with contextlib.suppress(PrepareError):
            read_all(registry)
    finally:
        file.write_bytes(before)
