"""Finding, checking and pulling a registered version."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from fake_run import FakeRun, judged_run
from small_disk import fill, small_disk
from typer.testing import CliRunner

from artifacts.deploy.registered import check_files, checked_folder, find_version, pull_version
from artifacts.registry import MANIFEST_TAG, Registry, Version
from pipeline.cli.main import app
from pipeline.environments.settings import Settings
from prepare.errors import RegistryError, UsageError
from recipes.checkpoints.weight_files import BUNDLE


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> FakeRun:
    made = judged_run(tmp_path_factory.mktemp("run") / "store", lost={"fp8-dynamic": 0})
    made.promote()
    return made


@pytest.fixture
def registry(run: FakeRun) -> Registry:
    return run.registry


@pytest.fixture
def version(registry: Registry) -> Version:
    return find_version(registry, "model@champion")


@pytest.fixture
def folder(version: Version, tmp_path: Path) -> Path:
    return Path(shutil.copytree(version.source, tmp_path / "copy"))


class TestCheckFiles:
    def test_as_registered(self, version: Version, folder: Path) -> None:
        assert check_files(version, folder, public_key=None) > 5

    def test_a_signature_that_came_later(self, version: Version, folder: Path) -> None:
        """A tool of the format puts it there; in what a registry hands out it has no place."""
        (folder / "model.sig").write_text("{}")
        (folder / ".gitattributes").write_text("*.safetensors filter=lfs\n")
        check_files(version, folder, public_key=None)
        with pytest.raises(RegistryError) as caught:
            check_files(version, folder, public_key=None, added=())
        assert caught.value.where == str(folder)

    @pytest.mark.parametrize(
        "path",
        [
            *(".git/hooks/x", ".github/workflows/x.yml", ".cache/huggingface/x", ".gitignore"),
            # Neither a signature nor git's file, nor weights that the engine loads.
            *(".gitattributes/x", "model.sig/x.py", "consolidated.safetensors", "modeling.py"),
            *("sub/x.safetensors", f"{BUNDLE}/x"),
        ],
    )
    def test_a_file_that_was_added(self, version: Version, folder: Path, path: str) -> None:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text("x")
        with pytest.raises(RegistryError, match=path) as caught:
            check_files(version, folder, public_key=None)
        assert caught.value.where == str(folder)

    @pytest.mark.parametrize(
        "path", ["model.safetensors", "config.json", "README.md", f"{BUNDLE}/manifest.json"]
    )
    @pytest.mark.parametrize("how", ["changed", "gone", "a folder"])
    def test_a_file_that_is_another(
        self, version: Version, folder: Path, path: str, how: str
    ) -> None:
        file = folder / path
        content = file.read_bytes()
        file.unlink()
        if how == "changed":
            file.write_bytes(content[:-1] + b"!")
        elif how == "a folder":
            file.mkdir()
            (file / "x").touch()
        with pytest.raises(RegistryError) as caught:
            check_files(version, folder, public_key=None)
        assert file.name in caught.value.message + caught.value.where


class TestCheckedFolder:
    @pytest.fixture
    def settings(self, tmp_path: Path) -> Settings:
        return Settings(home=tmp_path / "home", store=tmp_path / "store")

    @pytest.mark.parametrize("name", ["nowhere", "other"])
    def test_a_wrong_folder_is_no_fault_of_the_version(
        self, version: Version, settings: Settings, tmp_path: Path, name: str
    ) -> None:
        (tmp_path / "other").mkdir()
        with pytest.raises(RegistryError) as caught:
            checked_folder(version, tmp_path / name, settings, "serve")
        assert caught.value.where.startswith(str(tmp_path / name))
        assert "--weights" in caught.value.hint
        assert "delete" not in caught.value.hint
        assert checked_folder(version, None, settings, "serve") == Path(version.source)

    def test_a_folder_that_is_gone_is_not_pulled_from_where_it_was(
        self, version: Version, settings: Settings
    ) -> None:
        gone = replace(version, source="/nowhere/at/all")
        with pytest.raises(RegistryError) as caught:
            checked_folder(gone, None, settings, "serve")
        run = version.tags["prepare.run"]
        assert caught.value.hint.startswith(f"`prepare promote {run}`")


class TestFindVersion:
    @pytest.mark.parametrize(
        ("reference", "words"),
        [
            ("model", "names no version"),
            ("model@", "names no version"),
            ("model@nope", "has no version or alias 'nope'"),
            ("nope@champion", "nothing is registered as 'nope'"),
        ],
    )
    def test_that_is_not(self, registry: Registry, reference: str, words: str) -> None:
        with pytest.raises(UsageError, match=words):
            find_version(registry, reference)

    def test_that_was_deleted_in_mlflow(self, run: FakeRun, tmp_path: Path) -> None:
        """MLflow deletes its aliases, too; the history still shows what happened."""
        file = Path(run.uri.removeprefix("sqlite:///"))
        shutil.copyfile(file, tmp_path / "registry.db")
        registry = Registry(f"sqlite:///{tmp_path / 'registry.db'}")
        registry._store._client.delete_model_version("model", "1")
        with pytest.raises(UsageError, match=r"version 1 .* was deleted"):
            find_version(registry, "model@champion")
        at = ("--registry", registry.uri)
        for command in ([], ["model"], ["model", "--history", "--json"]):
            done = CliRunner().invoke(app, ["registry", *command, *at], catch_exceptions=False)
            assert done.exit_code == 0
        assert [each["version"] for each in json.loads(done.stdout)] == ["1"]


class TestPull:
    def test_into_a_new_folder(self, registry: Registry, version: Version, tmp_path: Path) -> None:
        arguments = ["pull", "model@champion", str(tmp_path / "deeper" / "copy"), "--json"]
        killed, alive = (f".copy.{number}.partial" for number in (10**9, os.getppid()))
        for other in (killed, alive):
            (tmp_path / "deeper" / other / "x").mkdir(parents=True)
        done = CliRunner().invoke(
            app, [*arguments, "--registry", registry.uri], catch_exceptions=False
        )
        told = json.loads(done.stdout)
        assert told["version"] == "1"
        assert told["folder"] == str(tmp_path / "deeper" / "copy")
        check_files(version, tmp_path / "deeper" / "copy", public_key=None)
        assert {each.name for each in (tmp_path / "deeper").iterdir()} == {"copy", alive}
        with pytest.raises(UsageError) as caught:
            CliRunner().invoke(
                app, [*arguments, "--registry", registry.uri], catch_exceptions=False
            )
        assert caught.value.where == str(tmp_path / "deeper" / "copy")

    @pytest.mark.parametrize("fault", ["changed", "another version"])
    def test_nothing_appears_if_it_differs(
        self, version: Version, folder: Path, tmp_path: Path, fault: str
    ) -> None:
        required = {}
        if fault == "changed":
            (folder / "config.json").write_text("{ }")
        else:
            required = {MANIFEST_TAG: "0" * 64}

        def fetch(partial: Path) -> Version:
            shutil.copytree(folder, partial, dirs_exist_ok=True)
            return version

        with pytest.raises(RegistryError):
            pull_version(fetch, tmp_path / "second", None, required)
        assert [each.name for each in tmp_path.iterdir() if "second" in each.name] == []

    def test_the_full_disk_is_that_of_the_new_folder(
        self, registry: Registry, version: Version, tmp_path: Path
    ) -> None:
        with small_disk(tmp_path):
            fill(tmp_path)
            with pytest.raises(RegistryError, match="No space left") as caught:
                CliRunner().invoke(
                    app,
                    ["pull", "model@champion", str(tmp_path / "a"), "--registry", registry.uri],
                    catch_exceptions=False,
                )
            assert caught.value.where.startswith(str(tmp_path))
            assert "on a disk with room" in caught.value.hint
            assert [each.name for each in tmp_path.iterdir()] == ["ballast"]


def test_files_that_are_elsewhere(run: FakeRun, version: Version, tmp_path: Path) -> None:
    """The store's own folder of that version is found, too, as on a server's other machines."""
    moved = Version("model", "1", (), "mlflow-artifacts:/1", version.tags)
    here, there = (Settings(home=tmp_path, store=each) for each in (run.root, tmp_path))
    assert checked_folder(moved, None, here, "") == Path(version.source)
    with pytest.raises(RegistryError) as caught:
        checked_folder(moved, None, there, "serve")
    assert (
        "prepare pull model@1 FOLDER, then prepare serve model@1 --weights FOLDER"
        in caught.value.hint
    )
    with pytest.raises(RegistryError):
        checked_folder(replace(moved, source="/" + "x" * 9_999), None, there, "")
