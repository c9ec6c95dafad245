"""Capabilities of a package outside of this repository, by the ways that ours are found."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from listener import Listener
from outside import PACKAGE, install, on_the_path
from quantized_checkpoint import source_files
from small_checkpoint import write_files
from typer.testing import CliRunner

from eval_gates.suites.suite_kind import for_worker, kind_of
from pipeline.cli.main import app
from pipeline.environments.definition import define
from pipeline.environments.garbage_collection import collect
from pipeline.environments.gpu_host import Severity
from pipeline.environments.settings import Settings, load_settings
from pipeline.plan.data_sources import SourceResolver
from pipeline.preflight.doctor import diagnose
from pipeline.serving.serving_arguments import ServingArguments
from pipeline.stages.quantize import WeightsProvenance
from pipeline.stages.questions import QuestionsParameters
from pipeline.stages.staying_workers import BOOTSTRAP
from prepare.digest import FileDigests
from prepare.errors import UsageError
from prepare.plugins import PLUGINS
from recipes.accelerator import Accelerator
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
        file.write_text(json.dumps({**keys, "engine_arguments": {"threads": 3}}))
        arguments = ServingArguments.of(load_profile(str(file)), is_baseline=False)
        launch = LaunchSpec("weights", arguments.engine_arguments, port=80)
        command = find_engine(arguments.engine).command("python", launch)
        assert command[command.index("--threads") + 1] == "3"
        assert Path(command[2]).is_relative_to(installed)


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
        """In an interpreter that has neither the package nor safetensors."""
        quantization = self.read_recipe(tmp_path).quantization
        spec = {"quantization": quantization.model_dump(), PLUGINS: [for_quantizer(quantization)]}
        (tmp_path / "spec.json").write_text(json.dumps(spec))
        paths = [tmp_path / "spec.json", tmp_path / "result.json", tmp_path]
        command = [sys.executable, str(BOOTSTRAP), quantization.worker, *map(str, paths)]
        subprocess.run(command, check=False, timeout=60)
        error = json.loads((tmp_path / "result.json").read_text())["error"]
        assert "safetensors" in error["message"]


@pytest.fixture
def planned(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], Result]:
    """`prepare plan` with the recipe, profile and policy of the package."""
    monkeypatch.setenv("PREPARE_HOME", str(tmp_path / "home"))
    model = write_files(tmp_path / "model", source_files())
    files = ("recipe", "profile", "policy")
    options = [word for each in files for word in (f"--{each}", str(RUN / f"{each}.yaml"))]
    return lambda: CliRunner().invoke(app, ["plan", str(model), *options, "--json"])


def test_a_plan_with_all_of_them(planned: Callable[[], Result]) -> None:
    done = planned()
    assert done.exit_code == 0, done.stderr
    plan = json.loads(done.stdout)
    stages = {stage["name"] for stage in plan["stages"] if stage["variant"] == "nearest-int8"}
    assert {"quantize", "check_weights", "evaluate sums", "evaluate quiz"} <= stages
    environments = {each["environment"] for each in plan["environments"]}
    # Neither engine nor loads need `serve`, and the weights are checked in `quantize`.
    expected = {"outside-int8-cpu", "outside-serve-cpu", "quantize-cpu", "evaluate"}
    assert environments == expected


INT8_LOCK = "outside_package/locks/outside-int8-cpu.txt"
SERVE_LOCK = "outside_package/locks/outside-serve-cpu.txt"


def without_hashes(lock: str) -> str:
    return re.sub(r" \\\n\s*--hash\S+", "", lock)


class TestEnvironment:
    def test_its_identity_follows_its_lock(self, installed: Path) -> None:
        before = define("outside-int8", Accelerator.CPU)
        assert "safetensors" in before.pins
        assert before.lock == installed / INT8_LOCK
        identity = before.identity
        text = before.lock.read_text()
        before.lock.write_text(re.sub(r"^numpy==\S+", "numpy==1.0", text, flags=re.MULTILINE))
        assert define("outside-int8", Accelerator.CPU).identity != identity

    def test_a_site_replaces_it(
        self, installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file = tmp_path / "settings.yaml"
        monkeypatch.setenv("PREPARE_SETTINGS", str(file))
        file.write_text(json.dumps({"environments": {"outside-serve": {"python": "/x/python"}}}))
        assert load_settings().environments["outside-serve"].python == Path("/x/python")
        file.write_text(json.dumps({"environments": {"outside-server": {"python": "/x"}}}))
        with pytest.raises(UsageError) as caught:
            load_settings()
        assert "environments.outside-server" in caught.value.where

    def test_no_lock_for_these_machines(self, installed: Path) -> None:
        with pytest.raises(UsageError) as caught:
            define("outside-int8", Accelerator.CUDA)
        assert caught.value.where.endswith("outside-int8-cuda.txt")

    @pytest.mark.parametrize("lock", [INT8_LOCK, SERVE_LOCK])
    @pytest.mark.parametrize(
        "spoil",
        [
            without_hashes,
            lambda lock: lock.replace("torch==", "torch>="),
            lambda lock: "--index-url https://example.org\n" + lock,
            None,
        ],
    )
    def test_a_malformed_lock_is_refused(
        self,
        installed: Path,
        planned: Callable[[], Result],
        lock: str,
        spoil: Callable[[str], str] | None,
    ) -> None:
        """Before anything is built; the first one of two that are malformed is named."""
        file = installed / lock
        if spoil is None:
            file.unlink()
        else:
            text = file.read_text()
            file.write_text(spoil(text))
            assert file.read_text() != text
        refused = planned().exception
        assert isinstance(refused, UsageError)
        assert refused.where == str(file)

    @pytest.mark.parametrize(
        ("file", "before", "after", "owner"),
        [
            ("int8.py", '"outside-int8"', '"outside-int4"', "nearest_int8 = "),
            ("engine.py", '"outside-serve"', '"outside-server"', "outside = "),
            ("environments.py", "\nINT8 = ", "\nINT8 = None\nOTHER = ", "outside-int8 = "),
            ("environments.py", "modules=", "module=", "outside-int8 = "),
            ("int8.py", ".int8_worker", ".int4_worker", "nearest_int8 = "),
        ],
    )
    def test_what_is_missing_is_refused_by_the_name_of_its_package(
        self,
        installed: Path,
        planned: Callable[[], Result],
        file: str,
        before: str,
        after: str,
        owner: str,
    ) -> None:
        code = installed / "outside_package" / file
        text = code.read_text()
        assert before in text
        code.write_text(text.replace(before, after))
        refused = planned().exception
        assert isinstance(refused, UsageError)
        assert "outside-package 2.5" in refused.where
        assert owner in refused.where

    def test_doctor_names_it(self, installed: Path, tmp_path: Path) -> None:
        """A malformed declaration of another package stops no command that needs it not."""
        (installed / SERVE_LOCK).unlink()
        settings = Settings(home=tmp_path / "home", store=tmp_path / "store")
        findings = {each.subject: each for each in diagnose(settings)}
        assert findings["environment outside-int8-cpu"].severity == Severity.OK
        assert findings["environment outside-serve"].severity == Severity.WARNING
        assert collect(settings, dry_run=True, older_than_days=0) == []


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
        sources = SourceResolver(None, "e", digests, Listener())
        source = sources.suite("adding", suite)
        assert sources.known("adding", suite).questions == 3
        asked = QuestionsParameters(suite=suite, source=source.identity, seed=1)
        assert asked.suite.model_dump() == {
            "kind": "sums",
            "prompt_format": "auto",
            "cluster_by": None,
            "parts_by": None,
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
