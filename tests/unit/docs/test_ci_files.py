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


def scripts() -> list[str]:
    """Every shell script of both files."""
    lines = [step["run"] for _, step in steps() if "run" in step]
    for job in parsed(GITLAB).values():
        if isinstance(job, dict):
            lines += [*job.get("before_script", ()), *job.get("script", ())]
    return lines


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
    calls = [call for call in commands() if call != ["--version"]]
    assert [call[0] for call in calls] == ["model", "promote", "model", "promote"]
    for call in calls:
        if call[0] not in COMMANDS:  # `promote` is checked once it is there
            continue
        known = {
            flag
            for parameter in COMMANDS[call[0]].params
            for flag in (*parameter.opts, *parameter.secondary_opts)
        }
        assert {word for word in call if word.startswith("--")} <= known
    variables = {p.envvar for p in COMMANDS["model"].params} | OF_THE_SETTINGS
    for file in (GITHUB, GITLAB):
        assert set(re.findall(r"\bPREPARE_[A-Z_]+\b", file.read_text())) <= variables


def test_every_reference_of_the_workflow_leads_somewhere() -> None:
    workflow = parsed(GITHUB)
    text = GITHUB.read_text()
    called = workflow[True]["workflow_call"]  # YAML 1.1 reads the key `on` as a truth value
    inputs = set(re.findall(r"inputs\.([\w-]+)", text))
    assert inputs == set(called["inputs"])
    ids = {step["id"] for _, step in steps() if "id" in step}
    assert set(re.findall(r"steps\.([\w-]+)\.", text)) == ids
    jobs = workflow["jobs"]
    references = re.findall(r"(?:needs|jobs)\.([\w-]+)\.outputs\.([\w-]+)", text)
    assert references
    for job, output in references:
        assert output in jobs[job]["outputs"]


def written_by_prepare() -> set[str]:
    from sample_reports import run_report

    from artifacts.ci.outputs import outputs

    return {line.partition("=")[0] for line in outputs(run_report(), "").splitlines()}


def test_what_the_jobs_read_is_what_the_command_writes() -> None:
    read = set(re.findall(r"steps\.judge\.outputs\.(\w+)", GITHUB.read_text()))
    assert read == {"verdict", "run", "passed"}
    assert read <= written_by_prepare()
    assert "run" in written_by_prepare()
    assert 'promote "$run"' in parsed(GITLAB)["promote"]["script"][-1]


def test_actions_are_pinned_to_commits() -> None:
    used = [step["uses"] for _, step in steps() if "uses" in step]
    assert used
    assert [each for each in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", each)] == []


@pytest.mark.parametrize(("commit", "status"), [("1111", 0), ("2222", 1)])
def test_promotion_installs_the_commit_that_judged(
    tmp_path: Path, commit: str, status: int
) -> None:
    """The step's own script; pip answers with the commit that the branch leads to now."""
    (script,) = [
        s["run"] for job, s in steps() if job == "promote" and "JUDGED_BY" in s.get("env", {})
    ]
    python = tmp_path / "python"
    python.write_text(
        "#!/bin/sh\n"
        'case "$*" in\n'
        '  "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;\n'
        f'  *freeze*) echo wheel==1; echo "prepare-model @ git+https://host/prepare@{commit}" ;;\n'
        "esac\n"
    )
    python.chmod(0o755)
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", script],
        env={
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "RUNNER_TEMP": str(tmp_path),
            "REQUIREMENT": "git+https://host/prepare@main",
            "JUDGED_BY": "prepare-model @ git+https://host/prepare@1111",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stderr
    assert ("::error::" in done.stdout) == bool(status)


def test_the_judging_step_does_what_it_says(tmp_path: Path) -> None:
    """The step's own script and variables, with a checkpoint that is not there."""
    (step,) = [step for _, step in steps() if step.get("id") == "judge"]
    at = tmp_path / "prepare" / "bin"
    at.mkdir(parents=True)
    (at / "prepare").write_text(f'#!/bin/sh\nexec {sys.executable} -m pipeline.cli.main "$@"\n')
    (at / "prepare").chmod(0o755)
    # What the caller leaves out is an empty variable, which must mean as much as none.
    given = dict.fromkeys(step["env"], "") | {
        "CHECKPOINT": str(tmp_path / "none"),
        "PREPARE_HOME": str(tmp_path / "home"),
        "PREPARE_PROFILE": "cpu",
        "PREPARE_POLICY": "demo",
    }
    clean = {name: v for name, v in os.environ.items() if not name.startswith("PREPARE_")}
    done = subprocess.run(
        ["bash", "-e", "-c", step["run"]],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=clean
        | given
        | {
            "CI": "true",
            "GITHUB_ACTIONS": "true",
            "RUNNER_TEMP": str(tmp_path),
            "GITHUB_OUTPUT": str(tmp_path / "outputs"),
            "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
        },
    )
    assert done.returncode == 1, done.stderr
    lines = (tmp_path / "outputs").read_text().splitlines()
    assert "verdict=error" in lines
    assert "junit=prepare-junit.xml" in lines
    assert (tmp_path / "prepare-junit.xml").is_file()
