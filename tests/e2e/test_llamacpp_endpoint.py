"""`prepare gate` between real llama.cpp servers: the demo model against itself, and damaged."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from free_port import free_port
from locked_environment import make_environment
from prepare_command import prepare

from pipeline.stages.demo_checkpoint import fetch_demo_package

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

HERE = Path(__file__).parent / "llamacpp_server"
NAME = "demo"
POLICY = """
name: itself
summary: numbers hidden in a text, asked by messages
suites: {needles: {kind: needles, lengths: [512], cases: 24, max_tokens: 160,
  margins: {fp8: 0.3}, noise_floor_questions: 3}}
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_environment(tmp_path_factory.mktemp("environment"), HERE / "server.txt")


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fetch_demo_package(tmp_path_factory.mktemp("package"))


@contextmanager
def served(python: Path, weights: Path, log: Path) -> Iterator[str]:
    port = free_port()
    command = [str(python), str(HERE / "serve.py"), str(weights), str(port), NAME]
    with log.open("wb") as file, subprocess.Popen(command, stdout=file, stderr=file) as server:
        try:
            deadline = time.monotonic() + 300
            while not answers(f"http://127.0.0.1:{port}/health"):
                assert server.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.5)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.kill()


def answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5, trust_env=False).is_success
    except httpx.HTTPError:
        return False


def damaged(weights: Path, folder: Path) -> Path:
    """The same file with noise in the second half of its tensors."""
    content = bytearray(weights.read_bytes())
    start = len(content) // 2
    content[start : start + 4_000_000] = bytes(range(256)) * (4_000_000 // 256)
    (folder / "damaged.gguf").write_bytes(content)
    return folder / "damaged.gguf"


def gate(store: Path, baseline: str, candidate: str) -> tuple[int, dict[str, Any]]:
    """The exit code of the command, and what it printed."""
    store.mkdir(exist_ok=True)
    policy = store / "policy.yaml"
    policy.write_text(POLICY)
    answer = prepare(
        store,
        *("gate", "--baseline", f"{baseline}/v1", "--baseline-model", NAME),
        *("--candidate", candidate, "--candidate-model", NAME),
        *("--policy", str(policy), "--json"),
        timeout=1500,
    )
    assert answer.stdout, answer.stderr
    return answer.returncode, json.loads(answer.stdout)


def test_a_model_passes_against_itself_and_noise_is_no_answer(
    python: Path, weights: Path, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    with (
        served(python, weights, tmp_path / "baseline.log") as baseline,
        served(python, damaged(weights, tmp_path), tmp_path / "damaged.log") as broken,
    ):
        code, report = gate(store, baseline, baseline)
        assert code == 0, report
        assert report["resolved"]["asked_by"]
        (found,) = report["variants"][0]["gates"]
        assert (found["prompt_format"], found["verdict"]) == ("chat", "pass")
        verified = prepare(store, "verify", "--json")
        assert verified.returncode == 0, verified.stdout
        code, report = gate(store, baseline, broken)
    # Its answers are one word without an end, which are no answers to judge.
    assert code == 1, report
    assert report["variants"][0]["verdict"] == "error"
    assert "identical" in str(report["variants"][0])
