"""Names of checkpoints, and what is told about whole and broken checkpoint folders."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from small_checkpoint import checkpoint_files, safetensors, write_files

from pipeline.core.digest import FileDigests
from pipeline.core.errors import CheckpointError, UsageError
from recipes.checkpoints.folder import (
    Checkpoint,
    CheckpointReference,
    Kind,
    inspect_folder,
    parse_reference,
)

INDEX = "model.safetensors.index.json"


def inspect(folder: Path, kind: Kind = "folder") -> Checkpoint:
    digests = FileDigests(folder.parent / "digests.json")
    return inspect_folder(folder, ref="it", kind=kind, revision=None, digests=digests)


def fault(folder: Path, kind: Kind = "folder") -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        inspect(folder, kind)
    assert caught.value.where
    return caught.value


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    return write_files(tmp_path / "whole", checkpoint_files())


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    return write_files(tmp_path / "sharded", checkpoint_files(shards=2))


def change_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


class TestReference:
    @pytest.mark.parametrize(
        ("text", "reference"),
        [
            ("demo:smollm2-135m", CheckpointReference("demo", "smollm2-135m")),
            ("org/name", CheckpointReference("hub", "org/name")),
            ("org/name@main", CheckpointReference("hub", "org/name", "main")),
            ("Org-1/na.me_2@refs/pr/3", CheckpointReference("hub", "Org-1/na.me_2", "refs/pr/3")),
            ("./x", CheckpointReference("folder", "./x")),
            ("../x", CheckpointReference("folder", "../x")),
            ("/x/y", CheckpointReference("folder", "/x/y")),
            ("~/x", CheckpointReference("folder", "~/x")),
        ],
    )
    def test_three_forms(self, text: str, reference: CheckpointReference) -> None:
        assert parse_reference(text) == reference
        assert reference.text == text

    def test_existing_path_wins_over_the_hub(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        assert parse_reference("org/name").kind == "hub"
        (tmp_path / "org" / "name").mkdir(parents=True)
        assert parse_reference("org/name") == CheckpointReference("folder", "org/name")
        assert parse_reference("org") == CheckpointReference("folder", "org")

    @pytest.mark.parametrize(
        "text", ["", "name", "a/b/c", "org/name@", "org/na me", "-a/b", "org/name@a b", "a@b@c"]
    )
    def test_none_of_them(self, text: str) -> None:
        with pytest.raises(UsageError) as caught:
            parse_reference(text)
        assert "org/name@revision" in caught.value.hint
        assert "demo:smollm2-135m" in caught.value.hint

    @pytest.mark.parametrize("text", ["demo:smolm2", "demo:", "smollm2-135m"])
    def test_close_demo_is_named(self, text: str) -> None:
        with pytest.raises(UsageError, match="demo:smollm2-135m"):
            parse_reference(text)

    def test_close_path_is_named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "models" / "big" / "llama-8b").mkdir(parents=True)
        with pytest.raises(UsageError, match="models/big/llama-8b"):
            parse_reference("models/big/lama-8b")

    def test_home_of_nobody(self) -> None:
        with pytest.raises(UsageError, match="~no-such-user-here"):
            parse_reference("~no-such-user-here/x")

    @pytest.mark.parametrize("start", ["", "./", "x/"], ids=["name", "folder", "id"])
    def test_one_that_is_far_too_long(self, start: str) -> None:
        with pytest.raises(UsageError) as caught:
            parse_reference(start + "a" * 100_000)
        assert len(str(caught.value)) < 1000

    @pytest.mark.parametrize(
        ("reference", "name"),
        [
            (CheckpointReference("hub", "org/Name-1B", "main"), "Name-1B"),
            (CheckpointReference("demo", "smollm2-135m"), "smollm2-135m"),
            (CheckpointReference("folder", "/a/b/"), "b"),
            (CheckpointReference("folder", "/"), "model"),
        ],
    )
    def test_short_name(self, reference: CheckpointReference, name: str) -> None:
        assert reference.short_name == name


def test_facts(whole: Path) -> None:
    found = inspect(whole)
    assert found.architecture == "LlamaForCausalLM"
    assert found.model_type == "llama"
    assert found.dtype == "bfloat16"
    assert found.parameters == 4 * 8 * 4
    assert found.weights_bytes == (whole / "model.safetensors").stat().st_size
    assert found.max_position_embeddings == 4096
    assert not found.quantized
    assert not found.needs_remote_code
    assert [file.name for file in found.files] == sorted(checkpoint_files())
    content = (whole / "config.json").read_bytes()
    config = next(file for file in found.files if file.name == "config.json")
    assert (config.size, config.sha256) == (len(content), hashlib.sha256(content).hexdigest())
    assert Checkpoint.model_validate(found.model_dump(mode="json")) == found


def test_digest_is_of_content_not_of_place(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "copy")
    assert inspect(whole).digest == inspect(tmp_path / "copy").digest


@pytest.mark.parametrize(
    "name", ["README.md", "pytorch_model.bin", "x.pt", "x.gguf", "consolidated.safetensors"]
)
def test_digest_ignores(whole: Path, name: str) -> None:
    before = inspect(whole).digest
    (whole / name).write_bytes(b"something")
    (whole / "original").mkdir()
    (whole / "original" / "config.json").write_bytes(b"{}")
    assert inspect(whole).digest == before


@pytest.mark.parametrize(
    "name",
    [
        "generation_config.json",
        "tokenizer.json",
        "chat_template.jinja",
        "tokenizer.model",
        "merges.txt",
        "added_tokens.json",
        "special_tokens_map.json",
        "preprocessor_config.json",
        "modeling_own.py",
    ],
)
def test_digest_heeds(whole: Path, name: str) -> None:
    before = inspect(whole).digest
    (whole / name).write_bytes(b'{"changed": 1}')
    assert inspect(whole).digest != before


def test_stale_shard_that_the_index_does_not_name_is_ignored(sharded: Path) -> None:
    before = inspect(sharded).digest
    (sharded / "model-00003-of-00003.safetensors").write_bytes(b"left over")
    assert inspect(sharded).digest == before


@pytest.mark.parametrize(
    "config",
    [
        {"quantization_config": {"quant_method": "awq"}},
        {"text_config": {"quantization_config": {"quant_method": "fp8"}}},
        {"compression_config": {"format": "pack"}},
    ],
)
def test_quantized_is_recorded(whole: Path, config: dict[str, Any]) -> None:
    change_json(whole / "config.json", **config)
    assert inspect(whole).quantized


def test_modelopt_file_is_recorded_as_quantized(whole: Path) -> None:
    (whole / "hf_quant_config.json").write_text("{}")
    assert inspect(whole).quantized


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
def test_remote_code_is_recorded(whole: Path, name: str) -> None:
    own = {"auto_map": {"AutoModelForCausalLM": "modeling_own.Own"}}
    change_json(whole / name, model_type="own", **own)
    assert inspect(whole).needs_remote_code
    change_json(whole / name, auto_map={})  # as Phi-4 has it
    assert not inspect(whole).needs_remote_code


def test_dtype_is_that_of_most_bytes(whole: Path) -> None:
    mixed = {"a": ("F8_E4M3", (100,)), "b": ("BF16", (10,)), "c": ("F32", (2,))}
    (whole / "model.safetensors").write_bytes(safetensors(mixed))
    assert inspect(whole).dtype == "f8_e4m3"


def test_multimodal_context_length(whole: Path) -> None:
    change_json(
        whole / "config.json",
        max_position_embeddings=None,
        text_config={"max_position_embeddings": 64},
    )
    assert inspect(whole).max_position_embeddings == 64


class TestFaults:
    def test_no_folder(self, tmp_path: Path) -> None:
        assert "folder does not exist" in fault(tmp_path / "none").message

    @pytest.mark.parametrize("named", ["m.gguf", "."])
    def test_gguf(self, tmp_path: Path, named: str) -> None:
        (tmp_path / "m.gguf").write_bytes(b"GGUF")
        assert "16-bit checkpoint" in fault(tmp_path / named).hint

    def test_weights_file_instead_of_folder(self, whole: Path) -> None:
        assert fault(whole / "model.safetensors").hint == f"use its folder: {whole}"

    def test_no_config(self, whole: Path) -> None:
        (whole / "config.json").unlink()
        assert "no config.json" in fault(whole).message

    def test_adapter(self, whole: Path) -> None:
        (whole / "config.json").rename(whole / "adapter_config.json")
        error = fault(whole)
        assert "adapter" in error.message
        assert "merge" in error.hint

    @pytest.mark.parametrize("text", [b"{", b"\xff", b"[" * 100_000])
    def test_invalid_config(self, whole: Path, text: bytes) -> None:
        (whole / "config.json").write_bytes(text)
        error = fault(whole)
        assert "not valid JSON" in error.message
        assert error.where == str(whole / "config.json")

    def test_config_is_no_object(self, whole: Path) -> None:
        (whole / "config.json").write_text("[]")
        assert "no JSON object" in fault(whole).message

    @pytest.mark.parametrize("key", ["architectures", "model_type", "max_position_embeddings"])
    @pytest.mark.parametrize("value", [None, [], 0, {}])
    def test_config_lacks(self, whole: Path, key: str, value: Any) -> None:
        change_json(whole / "config.json", **{key: value})
        error = fault(whole)
        assert error.where == f"{whole / 'config.json'}, key {key}"
        assert error.hint

    @pytest.mark.parametrize(
        ("name", "hint"),
        [
            ("pytorch_model.bin", "safe_serialization=True"),
            ("model.pt", "safe_serialization=True"),
            ("model.gguf", "16-bit checkpoint"),
            ("notes.txt", "weights"),
        ],
    )
    def test_no_safetensors(self, whole: Path, name: str, hint: str) -> None:
        (whole / "model.safetensors").rename(whole / name)
        error = fault(whole)
        assert "no .safetensors file" in error.message
        assert hint in error.hint

    def test_no_tokenizer(self, whole: Path) -> None:
        (whole / "tokenizer.json").unlink()
        assert "no tokenizer" in fault(whole).message

    def test_empty_weights(self, whole: Path) -> None:
        (whole / "model.safetensors").write_bytes(safetensors({"a": ("BF16", (0, 4))}))
        assert "empty" in fault(whole).message

    def test_truncated_weights(self, whole: Path) -> None:
        path = whole / "model.safetensors"
        path.write_bytes(path.read_bytes()[:-1])
        assert "truncated" in fault(whole).message

    @pytest.mark.parametrize("weight_map", [None, {}, [], {"a": 3}])
    def test_index_without_weight_map(self, sharded: Path, weight_map: Any) -> None:
        change_json(sharded / INDEX, weight_map=weight_map)
        assert fault(sharded).where == f"{sharded / INDEX}, key weight_map"

    def test_missing_shard(self, sharded: Path) -> None:
        (sharded / "model-00002-of-00002.safetensors").unlink()
        error = fault(sharded)
        assert "1 of 2 weight files are missing: model-00002-of-00002.safetensors" in error.message

    def test_missing_index(self, sharded: Path) -> None:
        (sharded / INDEX).unlink()
        assert "their index is missing" in fault(sharded).message

    def test_two_sets_of_weights(self, sharded: Path) -> None:
        (sharded / "model.safetensors").write_bytes(safetensors({"a": ("BF16", (2,))}))
        assert "two sets of weights" in fault(sharded).message

    def test_tensor_absent_from_its_shard(self, sharded: Path) -> None:
        name = "model-00001-of-00002.safetensors"
        (sharded / name).write_bytes(safetensors({"layers.0.weight": ("BF16", (8, 4))}))
        assert "assigns the tensor 'layers.2.weight'" in fault(sharded).message

    @pytest.mark.parametrize(
        "name",
        ["../secret.safetensors", "/etc/x.safetensors", "a/b.safetensors", "..", "config.json"],
    )
    def test_index_that_points_elsewhere(self, sharded: Path, name: str) -> None:
        (sharded.parent / "secret.safetensors").write_bytes(safetensors({"a": ("BF16", (2,))}))
        change_json(sharded / INDEX, weight_map={"a": name})
        error = fault(sharded)
        assert repr(name) in error.message
        assert error.where.startswith(str(sharded / INDEX))

    @pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
    def test_link_that_leaves_the_folder(self, whole: Path, name: str) -> None:
        (whole / name).rename(whole.parent / "outside")
        (whole / name).symlink_to("../outside")
        error = fault(whole)
        assert "leaves the checkpoint's folder" in error.message
        assert error.where == str(whole / name)
        assert (
            fault(whole, kind="hub").message == error.message
        )  # no folder of the Hub's cache either

    def test_link_within_the_folder_is_fine(self, whole: Path) -> None:
        (whole / "model.safetensors").rename(whole / "weights.data")
        (whole / "model.safetensors").symlink_to("weights.data")
        assert inspect(whole).parameters == 128

    def test_dangling_link(self, whole: Path) -> None:
        (whole / "tokenizer_config.json").unlink()
        (whole / "tokenizer_config.json").symlink_to("gone")
        assert "broken link" in fault(whole).message


class TestHubCache:
    """Snapshots are folders of links to contents, named by their sha256 where they are large."""

    @staticmethod
    def link_to_blob(path: Path, blobs: Path) -> None:
        blob = blobs / hashlib.sha256(path.read_bytes()).hexdigest()
        blobs.mkdir(parents=True, exist_ok=True)
        path.rename(blob)
        path.symlink_to(blob)

    @pytest.fixture
    def repository(self, tmp_path: Path) -> Path:
        repository = tmp_path / "hub" / "models--org--name"
        snapshot = write_files(repository / "snapshots" / "c0ffee", checkpoint_files())
        for path in list(snapshot.iterdir()):
            self.link_to_blob(path, repository / "blobs")
        return repository

    def test_links_into_the_repository(self, repository: Path, whole: Path) -> None:
        snapshot = repository / "snapshots" / "c0ffee"
        assert inspect(snapshot, "hub").digest == inspect(whole).digest

    def test_only_for_kind_hub(self, repository: Path) -> None:
        error = fault(repository / "snapshots" / "c0ffee", "folder")
        assert "leaves the checkpoint's folder" in error.message

    def test_links_into_the_store_that_repositories_share(self, repository: Path) -> None:
        snapshot = repository / "snapshots" / "c0ffee"
        name = (snapshot / "model.safetensors").readlink()
        name.rename(repository.parent / "xet-hash")
        shared = repository.parent / "blobs" / "ab" / "xet-hash"
        shared.parent.mkdir(parents=True)
        (repository.parent / "xet-hash").rename(shared)
        name.symlink_to(shared)
        assert inspect(snapshot, "hub").parameters == 128

    def test_link_to_another_repository(self, repository: Path) -> None:
        snapshot = repository / "snapshots" / "c0ffee"
        other = repository.parent / "models--org--other" / "secret"
        other.parent.mkdir()
        other.write_text("{}")
        (snapshot / "chat_template.jinja").unlink()
        (snapshot / "chat_template.jinja").symlink_to(other)
        assert "leaves the checkpoint's folder" in fault(snapshot, "hub").message

    def test_content_that_is_not_what_the_hub_promised(self, repository: Path) -> None:
        snapshot = repository / "snapshots" / "c0ffee"
        blob = (snapshot / "model.safetensors").resolve()
        content = bytearray(blob.read_bytes())
        content[-1] ^= 1
        blob.write_bytes(content)
        error = fault(snapshot, "hub")
        assert "the file is damaged: its sha256 is" in error.message
        assert error.where == str(blob)
