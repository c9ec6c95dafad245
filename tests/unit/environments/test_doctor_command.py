from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_environment import TinySource, write_engine
from typer.testing import CliRunner, Result

from pipeline.cli.main import app
from pipeline.environments.environment import Environment
from prepare.errors import UsageError


@pytest.fixture(autouse=True)
def own_home(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PREPARE_SETTINGS", "PREPARE_STORE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PREPARE_HOME", str(home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def answer(*arguments: str) -> Any:
    result = run(*arguments, "--json")
    assert result.exit_code in (0, 1), result.output
    return json.loads(result.stdout)


def write_settings(tmp_path: Path, built: Environment) -> None:
    file = tmp_path / "config" / "prepare" / "settings.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(f"environments: {{serve: {{python: {built.python}}}}}")


def half_built(home: Path) -> Path:
    folder = home / "environments" / "serve-cpu-0123456789abcdef"
    folder.mkdir(parents=True)
    return folder


def test_environments_are_named_to_be_built() -> None:
    with pytest.raises(UsageError, match="only to build"):
        CliRunner().invoke(app, ["doctor", "serve"], catch_exceptions=False)


def test_doctor_exits_with_1_when_something_is_wrong(home: Path) -> None:
    home.write_text("a file is in the way")
    result = run("doctor")
    assert result.exit_code == 1
    assert "PREPARE_HOME" in result.stdout


def test_gc(home: Path) -> None:
    folder = half_built(home)
    (removed,) = answer("gc", "--dry-run")["removed"]
    assert (removed["kind"], removed["path"]) == ("environment", str(folder))
    assert folder.exists()
    assert "removed" in run("gc").stdout
    assert not folder.exists()
    assert "0 things removed" in run("gc").stdout


def test_build_takes_a_sites_interpreter_as_it_is(
    tiny: TinySource, built: Environment, tmp_path: Path
) -> None:
    (packages,) = built.python.parent.parent.glob("lib/python3*/site-packages")
    write_engine(packages)
    write_settings(tmp_path, built)
    (found,) = answer("doctor", "--build", "serve", "--accelerator", "cpu")["built"]
    assert found["python"] == str(built.python)
    assert found["managed"] is False
    assert found["versions"]["tiny-thing"] == "1.0"
