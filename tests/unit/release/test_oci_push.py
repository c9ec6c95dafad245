"""Packing a version's folder on the fly."""

from __future__ import annotations

from pathlib import Path

from artifacts.registry.oci_layout_registry import OciLayoutRegistry
from artifacts.registry.registry import TUPLE_TAG, Version
from pipeline.core.digest import digest_file
from pipeline.core.events import NullProgress
from pipeline.core.file_digests import FileDigests
from pipeline.release.oci_push import pack_folder


def test_the_same_files_and_tags_have_the_digest_of_a_layout(tmp_path: Path) -> None:
    folder = tmp_path / "weights"
    (folder / "deeper").mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "deeper" / "file").write_text("content")
    tags = {TUPLE_TAG: "a", "prepare.override": ""}
    layouts = OciLayoutRegistry(f"oci://{tmp_path / 'layouts'}")
    layouts.register("model", folder, tags)
    version = Version("model", "7", ("champion",), str(folder), tags)
    made, sources = pack_folder(
        version, folder, FileDigests(tmp_path / "digests.json"), NullProgress()
    )
    assert layouts.versions("model")[0].source.endswith(f"@{made.blob.digest}")
    assert made == layouts.pack_of(layouts.versions("model")[0])
    assert {f"sha256:{digest_file(path)}" for path in sources.values()} == {
        file.blob.digest for file in made.files
    }
