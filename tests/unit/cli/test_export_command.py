"""`prepare export` of a version that a run promoted: files from its evidence, nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from fake_run import NAME, RECIPE, FakeRun, judged_run
from typer.testing import CliRunner

from artifacts.deploy.export import WEIGHTS, Export, read_version
from artifacts.registry import MANIFEST_TAG
from pipeline.cli.main import app
from pipeline.environments.settings import load_settings
from prepare.errors import PrepareError, UsageError

OCI = "oci://registry.example.com/models/some@sha256:" + "c" * 64


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> FakeRun:
    made = judged_run(tmp_path_factory.mktemp("run") / "store", {RECIPE: 0})
    made.promote(variant=RECIPE)
    return made


@pytest.fixture(autouse=True)
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings of anyone who runs the tests."""
    for name in ("PREPARE_STORE", "PREPARE_SETTINGS", "PREPARE_REGISTRY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PREPARE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


def export(run: FakeRun, *words: str) -> Any:
    where = ["--store", str(run.root), "--registry", run.uri]
    reference = f"{NAME}@champion"
    done = CliRunner().invoke(
        app, ["export", reference, *words, *where, "--json"], catch_exceptions=False
    )
    return json.loads(done.stdout)


def complaint(kind: type[PrepareError], run: FakeRun, *words: str) -> PrepareError:
    with pytest.raises(kind) as caught:
        export(run, *words)
    return caught.value


def test_kubernetes(run: FakeRun, tmp_path: Path) -> None:
    made = export(run, "deploy", "--for", "kubernetes", "--from", OCI)
    assert {Path(file).parent for file in made["files"]} == {Path("deploy")}
    text = (tmp_path / "deploy" / "deployment.yaml").read_text()
    (version,) = run.registry.versions(NAME)
    assert version.tags["prepare.tuple"] in text
    pod = yaml.safe_load(text)["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == "prepare:cpu"
    fetch = pod["initContainers"][0]["command"]
    assert f"--require={MANIFEST_TAG}={version.tags[MANIFEST_TAG]}" in fetch


def test_the_cluster_cannot_read_a_registry_of_this_machine(run: FakeRun, tmp_path: Path) -> None:
    error = complaint(UsageError, run, "deploy", "--for", "kubernetes")
    assert error.where == run.uri
    assert not (tmp_path / "deploy").exists()


def test_the_fetching_command_runs(run: FakeRun, tmp_path: Path) -> None:
    """It fetches once, does nothing where the files are there, and refuses another digest."""
    settings = load_settings(run.root)
    (version,) = run.registry.versions(NAME)
    good = read_version(version, None, settings, source=run.uri)
    weights = tmp_path / "weights"

    def fetch(made: Export) -> subprocess.CompletedProcess[bytes]:
        words = [word.replace(WEIGHTS, str(weights)) for word in made.fetch]
        path = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        variables = {**os.environ, **path, "PREPARE_STORE": str(tmp_path / "store")}
        return subprocess.run(words, env=variables, check=False, capture_output=True, timeout=60)

    bad = replace(good, manifest="0" * 64)
    assert fetch(bad).returncode == 1
    assert not weights.exists()
    for _ in range(2):
        done = fetch(good)
        assert done.returncode == 0, done.stderr
    assert (weights / "config.json").is_file()
