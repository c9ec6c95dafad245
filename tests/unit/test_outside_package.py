"""Capabilities of a package outside of this repository, by the ways that ours are found."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from listener import Listener
from outside import PACKAGE, install, on_the_path
from quantized_checkpoint import source_files
from small_checkpoint import write_files
from typer.testing import CliRunner

from eval_gates.suites.suite_kind import for_worker, kind_of
from pipeline.cli.main import app
from pipeline.plan.data_sources import SourceResolver
from pipeline.serving.serving_arguments import ServingArguments
from pipeline.stages.quantize import WeightsProvenance
from pipeline.stages.questions import QuestionsParameters
from pipeline.stages.staying_workers import BOOTSTRAP
from prepare.digest import FileDigests
from prepare.errors import UsageError
from prepare.plugins import PLUGINS
from recipes.catalog import load_policy, load_profile, load_recipe
from recipes.engines import LaunchSpec, find_engine
from recipes.policy import Policy
from recipes.quantization import for_worker as for_quantizer
from recipes.schema import Recipe

RUN = PACKAGE / "run"


@pytest.fixture
def installed(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "site"
    install(folder)
    with on_the_path(folder):
        yield folder


def policy_file(folder: Path, **suite: Any) -> Path:
    file = folder / "outside.yaml"
    keys = {"margins": {"fp8": 0.5}, **suite}
    file.write_text(json.dumps({"name": "outside", "summary": "s", "suites": {"adding": keys}}))
    return file


def read_policy(folder: Path, **suite: Any) -> Policy:
    return load_policy(str(policy_file(folder, **suite)))


class TestEngine:
    def test_a_profile_with_it(self, installed: Path, tmp_path: Path) -> None:
        file = tmp_path / "served.yaml"
        keys = {"name": "served", "summary": "s", "accelerator": "cpu", "engine": "outside"}
        file.write_text(json.dumps({**keys, "engine_arguments": {"slots": 3}}))
        arguments = ServingArguments.of(load_profile(str(file)), is_baseline=False)
        launch = LaunchSpec("weights", arguments.engine_arguments, port=80)
        command = find_engine(arguments.engine).command("python", launch)
        assert command[command.index("--max-num-seqs") + 1] == "3"
        assert "--slots" not in command


class TestQuantization:
    def read_recipe(self, folder: Path, **keys: Any) -> Recipe:
        file = folder / "int8.yaml"
        quantization = {"kind": "nearest_int8", **keys}
        names = {"name": "int8", "summary": "s", "family": "int8"}
        file.write_text(json.dumps({**names, "quantization": quantization}))
        return load_recipe(str(file))

    def test_a_recipe_with_it(self, installed: Path, tmp_path: Path) -> None:
        quantization = self.read_recipe(tmp_path).quantization
        assert quantization.weight_formats[0].bits == 8
        asked = WeightsProvenance(checkpoint="c", quantization=quantization, environment="e")
        assert WeightsProvenance.model_validate_json(asked.model_dump_json()) == asked

    def test_its_keys_are_checked(self, installed: Path, tmp_path: Path) -> None:
        with pytest.raises(UsageError) as caught:
            self.read_recipe(tmp_path, bits=4)
        assert caught.value.where.endswith("key quantization.bits")

    def test_without_its_package(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError) as caught:
            self.read_recipe(tmp_path)
        assert caught.value.where.endswith("key quantization")

    def test_its_worker_is_found_by_its_file(self, installed: Path, tmp_path: Path) -> None:
        """In an interpreter that has neither the package nor llm-compressor."""
        quantization = self.read_recipe(tmp_path).quantization
        spec = {"quantization": quantization.model_dump(), PLUGINS: [for_quantizer(quantization)]}
        (tmp_path / "spec.json").write_text(json.dumps(spec))
        paths = [tmp_path / "spec.json", tmp_path / "result.json", tmp_path]
        command = [sys.executable, str(BOOTSTRAP), quantization.worker, *map(str, paths)]
        subprocess.run(command, check=False, timeout=60)
        error = json.loads((tmp_path / "result.json").read_text())["error"]
        assert "llmcompressor" in error["message"]


def test_a_plan_with_all_of_them(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREPARE_HOME", str(tmp_path / "home"))
    model = write_files(tmp_path / "model", source_files())
    files = ("recipe", "profile", "policy")
    options = [word for each in files for word in (f"--{each}", str(RUN / f"{each}.yaml"))]
    done = CliRunner().invoke(app, ["plan", str(model), *options, "--json"])
    assert done.exit_code == 0, done.stderr
    plan = json.loads(done.stdout)
    stages = {stage["name"] for stage in plan["stages"] if stage["variant"] == "nearest-int8"}
    assert {"quantize", "check_weights", "evaluate sums", "evaluate quiz"} <= stages


class TestSuite:
    def test_a_policy_with_it(self, installed: Path, tmp_path: Path) -> None:
        suite = read_policy(tmp_path, kind="sums", digits=3).suites["adding"]
        assert kind_of(suite).metric(suite, None) == "exact_match of 3 digits"

    def test_its_keys_are_checked(self, installed: Path, tmp_path: Path) -> None:
        with pytest.raises(UsageError) as caught:
            read_policy(tmp_path, kind="sums", digit=3)
        assert caught.value.where.endswith("key suites.adding.digit")
        assert "did you mean 'digits'" in caught.value.hint

    def test_without_its_package(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError) as caught:
            read_policy(tmp_path, kind="sums")
        assert caught.value.where.endswith("key suites.adding")

    def test_a_broken_one_names_its_package(self, installed: Path, tmp_path: Path) -> None:
        with pytest.raises(UsageError) as caught:
            read_policy(tmp_path, kind="broken")
        assert "outside-package 2.5" in caught.value.where
        assert "broken = outside_package.absent:Suite" in caught.value.where

    def test_its_questions_are_laid_out_by_a_worker(self, installed: Path, tmp_path: Path) -> None:
        """In an interpreter that has not got the package on its path."""
        suite = read_policy(tmp_path, kind="sums").suites["adding"]
        digests = FileDigests(tmp_path / "digests.json")
        source = SourceResolver(None, "e", digests, Listener()).suite("adding", suite)
        assert source.questions == 3
        asked = QuestionsParameters(suite=suite, source=source.identity, seed=1)
        assert asked.suite.model_dump() == {
            "kind": "sums",
            "prompt_format": "auto",
            "cluster_by": None,
            "digits": 2,
        }
        spec = {**asked.model_dump(), "folder": None, PLUGINS: [for_worker(asked.suite)]}
        (tmp_path / "spec.json").write_text(json.dumps(spec))
        subprocess.run(
            [
                sys.executable,
                str(BOOTSTRAP),
                "eval_gates.questions_worker",
                str(tmp_path / "spec.json"),
                str(tmp_path / "result.json"),
                str(tmp_path),
            ],
            check=True,
            timeout=60,
        )
        result = json.loads((tmp_path / "result.json").read_text())["result"]
        assert result["questions"] == 3
        lines = (tmp_path / "questions.jsonl").read_text().splitlines()
        rows = [json.loads(line) for line in lines]
        assert {row["expected"] for row in rows} == {"42", "68", "46"}
