"""`prepare lint`: exit codes, and which machine's defaults count."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from pipeline.cli.main import app
from pipeline.core.errors import ExitCode, UsageError


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["lint", *words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout


def test_exit_code_is_whether_the_server_starts() -> None:
    good, _ = run("vllm serve x --max-num-seqs 2048", "--profile", "h100")
    bad, shown = run("vllm serve x --swap-space 4", "--profile", "h100")
    assert (good, bad) == (ExitCode.SUCCESS, ExitCode.GATES_FAILED)
    assert "--swap-space" in shown


def test_profile_decides_whose_defaults_count() -> None:
    def severities(profile: str) -> list[str]:
        words = ("vllm serve x --max-num-seqs 256", "--profile", profile, "--json")
        return [finding["severity"] for finding in json.loads(run(*words)[1])["findings"]]

    assert severities("h100") == ["harms"]
    assert severities("l40s") == ["idle"]
    assert severities("cpu") == []


def test_usage_error_is_an_object_with_json(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError) as error:
        app(["lint", "ls", "--json"], standalone_mode=False)
    shown = json.loads(capsys.readouterr().out)
    assert shown == {"schema_version": 1, "run": None, "error": error.value.to_dict()}
