"""`prepare gate` on a real server: the demo model against itself, question by question."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from prepare_command import prepare

from pipeline.serving.served_model import SERVED_NAME
from pipeline.serving.server import Server

# The first test may have to build the environments.
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

POLICY = """
name: itself
summary: the same model on both sides
suites: {suites}
"""
# A wider margin than this would end below what a summary of another document scores.
SUMMARIES = (
    "{rouge: {kind: rouge, sources: [builtin], margins: {fp8: 0.08}, max_tokens: 64, "
    "tier: advisory}, "
    "quiz: {kind: mmlu, prompt_format: cloze, num_fewshot: 0, sources: [builtin], "
    "margins: {fp8: 0.15}, noise_floor_questions: 8}}"
)
# SmolLM2-135M is at chance in the letter form.
LETTERS = (
    "{mmlu: {kind: mmlu, prompt_format: letter, num_fewshot: 0, sources: [packages], "
    "margins: {fp8: 0.3}, questions: 48}}"
)


def gate(server: Server, tokenizer: Path, store: Path, suites: str) -> tuple[int, dict[str, Any]]:
    """The exit code of the command, and what it printed."""
    store.mkdir(exist_ok=True)
    policy = store / "policy.yaml"
    policy.write_text(POLICY.format(suites=suites))
    answer = prepare(
        store,
        "gate",
        *("--baseline", f"{server.url}/v1", "--baseline-model", SERVED_NAME),
        *("--candidate", server.url, "--candidate-model", SERVED_NAME),
        *("--tokenizer", str(tokenizer), "--policy", str(policy), "--json"),
    )
    return answer.returncode, json.loads(answer.stdout)


def test_a_model_is_not_inferior_to_itself(
    server: Server, demo_model: Path, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    code, report = gate(server, demo_model, store, SUMMARIES)
    assert code == 0, report
    (variant,) = report["variants"]
    (found,) = [gate for gate in variant["gates"] if gate["name"] == "quiz"]
    assert (variant["verdict"], found["verdict"]) == ("pass", "pass")
    assert found["n"] <= found["planned"]
    assert found["noise_floor"]["n"] == 8
    assert found["baseline"] > 0.05
    assert all(gate["kind"] == "quality" for gate in variant["gates"])

    verified = prepare(store, "verify", "--json")
    assert verified.returncode == 0, verified.stdout
    checked = json.loads(verified.stdout)
    assert checked["same"]
    assert checked["variants"][0]["answers"] >= 2 * found["n"]

    kept = (store / "stages" / "evaluate").glob("*/answers.jsonl")
    answers = next(file for file in kept if b"the" in file.read_bytes())
    answers.write_bytes(answers.read_bytes().replace(b"the", b"teh", 1))
    tampered = prepare(store, "verify", "--json")
    assert tampered.returncode == 1
    found = json.loads(tampered.stdout)
    assert not found["same"]
    assert f"{answers.parent.name}/answers.jsonl" in str(found["variants"][0])


def test_a_margin_that_reaches_below_any_summary_decides_nothing(
    server: Server, demo_model: Path, tmp_path: Path
) -> None:
    wide = SUMMARIES.replace("0.08", "0.3").replace("max_tokens: 64", "max_tokens: 24")
    wide = wide.replace("tier: advisory", "tier: critical")
    code, report = gate(server, demo_model, tmp_path / "store", wide)
    assert code == 5, report
    assert "insensitive" in report["variants"][0]["gates"][0]["reason"]


def test_a_baseline_that_guesses_decides_nothing(
    server: Server, demo_model: Path, tmp_path: Path
) -> None:
    code, report = gate(server, demo_model, tmp_path / "store", LETTERS)
    assert code == 5, report
    assert "insensitive" in report["variants"][0]["gates"][0]["reason"]


def test_an_endpoint_that_is_not_there(server: Server, demo_model: Path, tmp_path: Path) -> None:
    answer = prepare(
        tmp_path,
        "gate",
        *("--baseline", server.url, "--candidate", "http://127.0.0.1:9"),
        *("--tokenizer", str(demo_model), "--policy", "demo"),
    )
    assert answer.returncode == 1
    assert "does not list its models" in answer.stderr
    assert "http://127.0.0.1:9/v1/models" in answer.stderr
