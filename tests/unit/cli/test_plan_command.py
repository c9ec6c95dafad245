"""`prepare plan` as a command: its exit code is the run's, and it shows how suites are asked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from quantized_checkpoint import source_files
from small_checkpoint import write_files
from typer.testing import CliRunner

from pipeline.cli.main import app


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PREPARE_HOME", str(tmp_path / "home"))
    folder = write_files(tmp_path / "model", source_files())
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    return folder


def plan(model: Path, prompt_format: str, *options: str) -> tuple[int, str]:
    policy = model.parent / "policy.yaml"
    policy.write_text(
        "{name: mine, summary: s, suites: {code: {kind: humaneval, "
        f"prompt_format: {prompt_format}, margins: {{fp8: 0.1}}}}}}}}"
    )
    words = ["plan", str(model), "--policy", str(policy), "--profile", "cpu"]
    done = CliRunner().invoke(app, [*words, "--recipe", "fp8-dynamic", *options])
    return done.exit_code, done.stdout


def test_the_form_of_each_suite_is_shown(model: Path) -> None:
    assert "asked as: code completion" in plan(model, "auto", "--verbose")[1]
    assert "policy mine, profile cpu" in plan(model, "auto")[1].splitlines()
    assert json.loads(plan(model, "auto", "--json")[1])["forms"] == {"code": "completion"}
    (model / "chat_template.jinja").write_text("{{ messages }}")
    assert "asked as: code chat" in plan(model, "auto", "--verbose")[1]


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_run_that_would_be_refused_has_its_exit_code(
    model: Path, options: tuple[str, ...]
) -> None:
    assert plan(model, "completion", *options)[0] == 0
    assert plan(model, "chat", *options)[0] == 2
    store = model / "config.json" / "store"
    assert plan(model, "completion", "--store", str(store), *options)[0] == 1
