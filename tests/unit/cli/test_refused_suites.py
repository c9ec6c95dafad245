"""Suites that the model or the data cannot serve: file, key and cure, before anything is made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from quantized_checkpoint import source_files
from small_checkpoint import write_files
from typer.testing import CliRunner

from pipeline.cli.main import app
from prepare.errors import PrepareError

TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}{% if strict %}!{% endif %}"
ROW = {"question": "How many is 1 and 1?", "answer": "#### 2"}
GSM8K = {"kind": "gsm8k", "margins": {"fp8": 0.2}, "max_tokens": 16}


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PREPARE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    rows = "".join(json.dumps({**ROW, "n": n}) + "\n" for n in range(200))
    write_files(tmp_path / "data", {"gsm8k_test.jsonl": rows.encode()})
    template = {"chat_template.jinja": TEMPLATE.encode()}
    return write_files(tmp_path / "model", {**source_files(), **template})


def refusal(command: str, model: Path, suite: dict[str, Any], **policy: Any) -> str:
    file = model.parent / "policy.yaml"
    asked = {"name": "mine", "summary": "s", "suites": {"mine": suite}, **policy}
    file.write_text(yaml.safe_dump(asked))
    words = [command, str(model), "--policy", str(file), "--profile", "cpu"]
    words += ["--recipe", "fp8-dynamic", "--eval-data", str(model.parent / "data")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code in (1, 2), done.stdout
    assert not (model.parent / "home" / "store" / "stages").exists()
    if isinstance(done.exception, PrepareError):
        error = done.exception
        return f"{error.message} {error.where} {error.hint}"
    return " ".join((done.stdout + done.stderr).split())


@pytest.mark.parametrize("command", ["plan", "model"])
@pytest.mark.parametrize(
    ("suite", "policy", "words"),
    [
        pytest.param(
            {**GSM8K, "chat_template_kwargs": {"strikt": True}},
            {},
            ("suites.mine.chat_template_kwargs.strikt", "template", "did you mean 'strict'"),
            id="an unknown template argument",
        ),
        pytest.param(
            {**GSM8K, "max_tokens": 900_000},
            {},
            ("suites.mine.max_tokens", "900,000", "'max_tokens: model'"),
            id="a cap beyond the model's length",
        ),
        pytest.param(
            {"kind": "tools", "form": "server", "cluster_by": "functions", "margins": {"fp8": 0.2}},
            {},
            ("suites.mine.form", "/model", "'form: prompt'"),
            id="a template without tools",
        ),
    ],
)
def test_it_is_refused_with_its_place_and_cure(
    model: Path, command: str, suite: dict[str, Any], policy: dict[str, Any], words: tuple[str, ...]
) -> None:
    said = refusal(command, model, suite, **policy)
    assert [word for word in words if word not in said] == [], said


@pytest.mark.parametrize("command", ["plan", "model"])
@pytest.mark.parametrize(
    ("kind", "row", "words"),
    [
        (
            "tools",
            {
                "question": "Tell me a joke.",
                "function": [{"name": "get-weather", "description": "d", "parameters": {}}],
                "ground_truth": [],
            },
            ("'get-weather'", "mine.jsonl, line 1", "form: server"),
        ),
        (
            "structured",
            {"prompt": "Ada is 34.", "schema": {"name": "a", "schema": {"type": "object"}}},
            ("its inner 'schema'", "mine.jsonl, line 1"),
        ),
    ],
)
def test_rows_that_would_judge_no_answer_are_refused(
    model: Path, command: str, kind: str, row: dict[str, Any], words: tuple[str, ...]
) -> None:
    write_files(model.parent, {"mine.jsonl": json.dumps(row).encode()})
    suite = {"kind": kind, "data": "./mine.jsonl", "margins": {"fp8": 0.2}}
    said = refusal(command, model, suite)
    assert [word for word in words if word not in said] == [], said
