"""Pulling a registered version, and whether this machine is the one it was judged on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from artifacts.registry.mlflow_registry import MlflowRegistry
from artifacts.registry.registry import (
    FILES_TAG,
    TUPLE_TAG,
    WEIGHTS_TAG,
    AliasChange,
    ChangeReason,
    Version,
)
from pipeline.checkpoint.weight_files import weights_digest
from pipeline.checkpoint.weights_folder_files import digest_of_other_files
from pipeline.cli.main import app
from pipeline.core.digest import digest_file
from pipeline.core.errors import RegistryError, UsageError
from pipeline.core.hardware import hardware
from pipeline.environments.environment import Accelerator, identity
from pipeline.environments.settings import load_settings
from pipeline.release.deployment import check_files, find_version, pull_version

SERVING = {"engine_arguments": {"kv-cache-dtype": "fp8"}, "environment": {"OMP_A": "1"}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint's files; nothing here reads what is in the weights."""
    path = tmp_path / "weights"
    path.mkdir()
    (path / "model.safetensors").write_bytes(b"weights")
    (path / "config.json").write_text("{}")
    (path / "tokenizer.json").write_text("{}")
    return path


def tags(folder: Path, **changes: str) -> dict[str, str]:
    return {
        TUPLE_TAG: "t",
        WEIGHTS_TAG: weights_digest(folder, digest_file),
        FILES_TAG: digest_of_other_files(folder),
        "prepare.engine_version": "0.32.0",
        "prepare.environment.serve": identity("serve", Accelerator.CPU, load_settings()),
        "prepare.serving": json.dumps(SERVING),
        "prepare.hardware": hardware("cpu").model_dump_json(),
        **changes,
    }


def version(folder: Path, **changes: str) -> Version:
    return Version("model", "1", ("champion",), str(folder), tags(folder, **changes))


class TestCheckFiles:
    def test_as_registered(self, folder: Path) -> None:
        assert check_files(version(folder), folder, public_key=None) == 3

    def test_a_signature_that_came_later(self, folder: Path, tmp_path: Path) -> None:
        """A tool of the format puts it there; in what a registry hands out it has no place."""
        registered = version(folder)
        (folder / "model.sig").write_text("{}")
        (folder / ".gitattributes").write_text("*.safetensors filter=lfs\n")
        check_files(registered, folder, public_key=None)
        with pytest.raises(RegistryError) as caught:
            check_files(registered, folder, public_key=None, added=())
        assert caught.value.where == str(folder)

    @pytest.mark.parametrize(
        "path",
        [
            ".git/hooks/x",
            ".github/workflows/x.yml",
            ".cache/huggingface/x",
            ".gitignore",
            # Neither a signature nor git's file, nor weights that the engine loads.
            ".gitattributes/x",
            "model.sig/x.py",
            "consolidated.safetensors",
            "sub/x.safetensors",
        ],
    )
    def test_what_no_digest_covers(self, folder: Path, path: str) -> None:
        registered = version(folder)
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text("x")
        with pytest.raises(RegistryError) as caught:
            check_files(registered, folder, public_key=None)
        assert caught.value.where == str(folder)

    @pytest.mark.parametrize(
        ("file", "words"),
        [("model.safetensors", "the weights are not"), ("config.json", "the other files")],
    )
    def test_one_byte_changed(self, folder: Path, file: str, words: str) -> None:
        registered = version(folder)
        content = (folder / file).read_bytes()
        (folder / file).write_bytes(content[:-1] + b"!")
        with pytest.raises(RegistryError, match=words):
            check_files(registered, folder, public_key=None)

    def test_a_file_added_or_missing(self, folder: Path) -> None:
        registered = version(folder)
        (folder / "modeling.py").write_text("import os")
        with pytest.raises(RegistryError) as caught:
            check_files(registered, folder, public_key=None)
        assert caught.value.where == str(folder)
        (folder / "modeling.py").unlink()
        (folder / "tokenizer.json").unlink()
        with pytest.raises(RegistryError) as caught:
            check_files(registered, folder, public_key=None)
        assert caught.value.where == str(folder)

    @pytest.mark.parametrize("tag", [WEIGHTS_TAG, FILES_TAG])
    def test_a_digest_that_is_gone_switches_nothing_off(self, folder: Path, tag: str) -> None:
        kept = {name: value for name, value in tags(folder).items() if name != tag}
        with pytest.raises(RegistryError) as caught:
            check_files(Version("model", "1", (), str(folder), kept), folder, public_key=None)
        assert tag in caught.value.where

    def test_a_version_of_somebody_else(self, folder: Path) -> None:
        foreign = Version("model", "1", (), str(folder), {})
        with pytest.raises(RegistryError) as caught:
            check_files(foreign, folder, public_key=None)
        assert caught.value.where == "tag prepare.weights"


@pytest.fixture
def registry(tmp_path: Path, folder: Path) -> MlflowRegistry:
    """One version, which is the champion."""
    found = MlflowRegistry(f"sqlite:///{tmp_path / 'registry.db'}")
    number = found.register("model", folder, tags(folder))
    found.move_alias("model", AliasChange("champion", number, None, ChangeReason("promote", "ann")))
    return found


def test_find_and_pull(registry: MlflowRegistry, folder: Path, tmp_path: Path) -> None:
    for reference in ("model@champion", "model@1"):
        assert find_version(registry, reference).version == "1"
    for reference, words in (
        ("model", "names no version"),
        ("model@", "names no version"),
        ("model@nope", "has no version or alias 'nope'"),
        ("nope@champion", "no model 'nope'"),
    ):
        with pytest.raises(UsageError, match=words):
            find_version(registry, reference)
    destination = tmp_path / "deeper" / "copy"
    found = find_version(registry, "model@champion")
    assert pull_version(registry, found, destination, None) == 3
    assert (destination / "model.safetensors").read_bytes() == b"weights"
    with pytest.raises(UsageError) as caught:
        pull_version(registry, found, destination, None)
    assert caught.value.where == str(destination)
    # A changed file: nothing appears.
    (folder / "config.json").write_text("{ }")
    with pytest.raises(RegistryError) as caught:
        pull_version(registry, found, tmp_path / "second", None)
    assert str(tmp_path / ".second.") in caught.value.where
    assert sorted(path.name for path in tmp_path.iterdir() if "second" in path.name) == []


def test_the_commands(
    registry: MlflowRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREPARE_REGISTRY", registry.uri)

    def told(*arguments: str) -> Any:
        result = CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    pulled = told("pull", "model@champion", str(tmp_path / "copy"))
    assert (pulled["version"], pulled["files"]) == ("1", 3)
    assert Path(pulled["folder"]) == tmp_path / "copy"


def test_serving_weights_that_are_elsewhere(registry: MlflowRegistry, folder: Path) -> None:
    folder.rename(folder.with_name("moved"))
    arguments = ["serve", "model@champion", "--registry", registry.uri, "--check"]
    with pytest.raises(RegistryError) as caught:
        CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert "prepare pull model@1 FOLDER" in caught.value.hint
