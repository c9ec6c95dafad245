"""Names of checkpoints, and what is told about whole and broken checkpoint folders."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_checkpoint import checkpoint_files, safetensors, write_files

from prepare.digest import FileDigests
from prepare.errors import CheckpointError, UsageError
from recipes.checkpoints.checkpoint import Checkpoint, inspect_folder
from recipes.checkpoints.reference import CheckpointReference, parse_reference
from recipes.checkpoints.unsupported import own_code_error

INDEX, SECOND = "model.safetensors.index.json", "model-00002-of-00002.safetensors"
Spoil = Callable[[Path], Any]


def inspect(folder: Path) -> Checkpoint:
    return inspect_folder(folder, FileDigests(folder.parent / "digests.json"))


def fault(folder: Path) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        inspect(folder)
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


def test_facts(whole: Path) -> None:
    found = inspect(whole)
    assert found.architecture == "LlamaForCausalLM"
    assert found.to_dict()["model_type"] == "llama"
    assert found.dtype == "bfloat16"
    assert found.parameters == 4 * 8 * 4
    assert found.weights_bytes == (whole / "model.safetensors").stat().st_size
    assert found.max_position_embeddings == 4096
    assert not found.quantized
    assert not found.code_file
    assert [file.name for file in found.files] == sorted(checkpoint_files())
    content = (whole / "config.json").read_bytes()
    config = next(file for file in found.files if file.name == "config.json")
    assert (config.size, config.sha256) == (len(content), hashlib.sha256(content).hexdigest())


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


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
def test_remote_code_is_recorded(whole: Path, name: str) -> None:
    own = {"auto_map": {"AutoModelForCausalLM": "modeling_own.Own"}}
    change_json(whole / name, model_type="own", **own)
    assert inspect(whole).code_file == name
    assert f"{name} lacks auto_map" in own_code_error(str(whole / name)).hint
    change_json(whole / name, auto_map={})  # as Phi-4 has it
    assert not inspect(whole).code_file


def rewritten(name: str, **tensors: tuple[str, tuple[int, ...]]) -> Spoil:
    return lambda folder: (folder / name).write_bytes(safetensors(tensors))


def renamed(name: str, other: str) -> Spoil:
    return lambda folder: (folder / name).rename(folder / other)


def gone(name: str) -> Spoil:
    return lambda folder: (folder / name).unlink()


def dangling(folder: Path) -> None:
    (folder / "tokenizer_config.json").unlink()
    (folder / "tokenizer_config.json").symlink_to("gone")


SPOILT: dict[str, tuple[int, Spoil, str]] = {
    "no config": (1, gone("config.json"), "no config.json"),
    "an adapter": (1, renamed("config.json", "adapter_config.json"), "merge it into"),
    "a config that is a list": (
        1,
        lambda folder: (folder / "config.json").write_text("[]"),
        "no JSON object",
    ),
    "no tokenizer": (1, gone("tokenizer.json"), "no tokenizer"),
    "empty weights": (1, rewritten("model.safetensors", a=("BF16", (0, 4))), "empty"),
    "truncated weights": (
        1,
        lambda folder: os.truncate(folder / "model.safetensors", 400),
        "truncated",
    ),
    "a broken link": (1, dangling, "broken link"),
    "GGUF": (1, renamed("model.safetensors", "m.gguf"), "16-bit checkpoint"),
    "a missing shard": (2, gone(SECOND), f"1 of 2 weight files are missing: {SECOND}"),
    "a missing index": (2, gone(INDEX), "their index is missing"),
    "two sets of weights": (
        2,
        rewritten("model.safetensors", a=("BF16", (2,))),
        "two sets of weights",
    ),
    "a shard without its tensor": (2, rewritten(SECOND, a=("BF16", (2,))), "assigns the tensor"),
}


class TestFaults:
    @pytest.mark.parametrize("name", SPOILT)
    def test_a_spoilt_folder(self, tmp_path: Path, name: str) -> None:
        shards, spoil, words = SPOILT[name]
        folder = write_files(tmp_path / "m", checkpoint_files(shards=shards))
        spoil(folder)
        assert words in str(fault(folder))

    def test_what_is_no_folder(self, whole: Path) -> None:
        assert "folder does not exist" in fault(whole / "none").message
        assert fault(whole / "model.safetensors").hint == f"use its folder: {whole}"

    @pytest.mark.parametrize("text", [b"{", b"\xff", b"[" * 100_000])
    def test_invalid_config(self, whole: Path, text: bytes) -> None:
        (whole / "config.json").write_bytes(text)
        error = fault(whole)
        assert "not valid JSON" in error.message
        assert error.where == str(whole / "config.json")

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
            ("pytorch_model.bin", "save_pretrained(FOLDER)"),
            ("model.pt", "save_pretrained(FOLDER)"),
            ("model.gguf", "16-bit checkpoint"),
            ("notes.txt", "weights"),
        ],
    )
    def test_no_safetensors(self, whole: Path, name: str, hint: str) -> None:
        (whole / "model.safetensors").rename(whole / name)
        error = fault(whole)
        assert "no .safetensors file" in error.message
        assert hint in error.hint

    @pytest.mark.parametrize("weight_map", [None, {}, [], {"a": 3}])
    def test_index_without_weight_map(self, sharded: Path, weight_map: Any) -> None:
        change_json(sharded / INDEX, weight_map=weight_map)
        assert fault(sharded).where == f"{sharded / INDEX}, key weight_map"

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
        assert inspect(snapshot).digest == inspect(whole).digest

    def test_links_into_the_store_that_repositories_share(self, repository: Path) -> None:
        snapshot = repository / "snapshots" / "c0ffee"
        name = (snapshot / "model.safetensors").readlink()
        name.rename(repository.parent / "xet-hash")
        shared = repository.parent / "blobs" / "ab" / "xet-hash"
        shared.parent.mkdir(parents=True)
        (repository.parent / "xet-hash").rename(shared)
        name.symlink_to(shared)
        assert inspect(snapshot).parameters == 128

    def test_link_to_another_repository(self, repository: Path) -> None:
        snapshot = repository / "snapshots" / "c0ffee"
        other = repository.parent / "models--org--other" / "secret"
        other.parent.mkdir()
        other.write_text("{}")
        (snapshot / "chat_template.jinja").unlink()
        (snapshot / "chat_template.jinja").symlink_to(other)
        assert "leaves the checkpoint's folder" in fault(snapshot).message

    def test_content_that_is_not_what_the_hub_promised(self, repository: Path) -> None:
        snapshot = repository / "snapshots" / "c0ffee"
        blob = (snapshot / "model.safetensors").resolve()
        content = bytearray(blob.read_bytes())
        content[-1] ^= 1
        blob.write_bytes(content)
        error = fault(snapshot)
        assert "the file is damaged: its sha256 is" in error.message
        assert error.where == str(blob)
