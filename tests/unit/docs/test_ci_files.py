"""The CI files to copy: valid by the official schemas, and they say only what the command knows."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from pipeline.cli.main import app

FOLDER = Path(__file__).resolve().parents[3] / "docs" / "ci"
GITHUB, GITLAB = FOLDER / "github-actions.yml", FOLDER / "gitlab-ci.yml"
SCHEMAS = {
    GITHUB: ("--builtin-schema", "vendor.github-workflows"),
    GITLAB: ("--builtin-schema", "vendor.gitlab-ci", "--data-transform", "gitlab-ci"),
}
COMMANDS: Any = getattr(typer.main.get_command(app), "commands")  # noqa: B009
OF_THE_SETTINGS = {"PREPARE_HOME", "PREPARE_STORE", "PREPARE_SETTINGS"}


def parsed(file: Path) -> dict[Any, Any]:
    found: dict[Any, Any] = yaml.safe_load(file.read_text())
    return found


def steps() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every step of the workflow with the name of its job."""
    for name, job in parsed(GITHUB)["jobs"].items():
        for step in job["steps"]:
            yield name, step


def scripts(*files: Path) -> list[str]:
    """Every shell script of the files, or of both."""
    found = []
    if not files or GITHUB in files:
        found += [step["run"] for _, step in steps() if "run" in step]
    if not files or GITLAB in files:
        jobs = [each for each in parsed(GITLAB).values() if isinstance(each, dict)]
        found += [line for job in jobs for line in job.get("script", ())]
    return found


def commands() -> list[list[str]]:
    """The words after `prepare` of every call of it."""
    calls = []
    for script in scripts():
        for line in script.splitlines():
            words = shlex.split(line.removesuffix(")"))
            found = [n for n, word in enumerate(words) if word.endswith("/bin/prepare")]
            calls += [words[n + 1 :] for n in found]
    return calls


def validate(file: Path, *schema: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "check_jsonschema", *schema, str(file)],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("file", [GITHUB, GITLAB], ids=lambda file: file.name)
def test_the_official_schema_accepts_it(file: Path, tmp_path: Path) -> None:
    done = validate(file, *SCHEMAS[file])
    assert done.returncode == 0, done.stdout
    broken = tmp_path / "broken.yml"
    before, after = ("timeout-minutes", "timeout-hours") if file == GITHUB else ("when:", "wen:")
    broken.write_text(file.read_text().replace(before, after))
    assert validate(broken, *SCHEMAS[file]).returncode == 1


@pytest.mark.parametrize("script", scripts())
def test_scripts_are_bash_and_nothing_is_pasted_into_them(script: str) -> None:
    done = subprocess.run(["bash", "-n", "-c", script], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert "${{" not in script  # what a caller names would be run as code


def test_every_option_and_variable_is_one_of_the_command() -> None:
    calls = commands()
    assert [call[0] for call in calls] == ["model", "promote"] * 2
    for call in calls:
        known = {flag for each in COMMANDS[call[0]].params for flag in each.opts}
        known |= {flag for each in COMMANDS[call[0]].params for flag in each.secondary_opts}
        assert {word for word in call if word.startswith("--")} <= known
    variables = {p.envvar for p in COMMANDS["model"].params} | OF_THE_SETTINGS
    for file in (GITHUB, GITLAB):
        assert set(re.findall(r"\bPREPARE_[A-Z_]+\b", file.read_text())) <= variables


def test_what_the_jobs_read_is_what_the_command_writes() -> None:
    from sample_reports import run_report

    from artifacts.ci import outputs

    written = {line.partition("=")[0] for line in outputs(run_report(), "").splitlines()}
    assert set(re.findall(r"steps\.judge\.outputs\.(\w+)", GITHUB.read_text())) == {"run"}
    assert "run" in written
    assert 'promote "$run"' in parsed(GITLAB)["promote"]["script"][-1]


@pytest.mark.parametrize("file", [GITHUB, GITLAB], ids=lambda file: file.name)
def test_the_judging_step_does_what_it_says(file: Path, tmp_path: Path) -> None:
    """The step's own script, with a checkpoint that is not there."""
    place = tmp_path / "home" / "bin"
    place.mkdir(parents=True)
    (place / "prepare").write_text(f'#!/bin/sh\nexec {sys.executable} -m prepare "$@"\n')
    (place / "prepare").chmod(0o755)
    clean = {name: v for name, v in os.environ.items() if not name.startswith("PREPARE_")}
    given = {
        "CHECKPOINT": str(tmp_path / "none"),
        "PREPARE_HOME": str(tmp_path / "home"),
        "PREPARE_REGISTRY": "",  # what is not set is an empty variable, which must mean none
        "PREPARE_PROFILE": "cpu",
        "CI": "true",
        "GITHUB_OUTPUT": str(tmp_path / "prepare.env"),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
    }
    script = next(each for each in scripts(file) if " model " in each)
    done = subprocess.run(
        ["bash", "-e", "-c", script],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=clean | given,
    )
    assert done.returncode == 2, done.stderr
    assert "verdict=error" in (tmp_path / "prepare.env").read_text().splitlines()
    assert (tmp_path / "summary.md").is_file()
