"""The files to copy for clusters: they parse, and say only what the command knows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from pipeline.cli.main import app
from pipeline.run.copies import RUN_ID

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "docs" / "cluster"
JOB = FOLDER / "kubernetes-job.yaml"
COMMANDS: Any = getattr(typer.main.get_command(app), "commands")  # noqa: B009


def check_known(words: list[str]) -> None:
    """The words after `prepare` name a command, and only options of it."""
    command = COMMANDS[words[0]]
    while hasattr(command, "commands"):
        words = words[1:]
        command = command.commands[words[0]]
    known = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
    assert {word for word in words if word.startswith("-")} <= known


def commands_in(text: str) -> list[list[str]]:
    start = r"^(?:exec |RUN |\s*)(?:\.venv/bin/)?prepare ((?!\{)[^&\n]*)"
    lines = re.findall(start, text, re.MULTILINE)
    return [shlex.split(line) for line in lines]


def test_the_job_of_kubernetes() -> None:
    job = yaml.safe_load(JOB.read_text())
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    check_known(container["args"])
    assert pod["automountServiceAccountToken"] is False
    # Each pod knows which copy it is, and all work on one run.
    spec = job["spec"]
    assert (spec["completionMode"], spec["completions"]) == ("Indexed", spec["parallelism"])
    assert RUN_ID.fullmatch(container["args"][container["args"].index("--run") + 1])
    assert container["securityContext"]["seccompProfile"]["type"] == "Localhost"
    volumes = {volume["name"] for volume in pod["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes


def test_commands_are_known() -> None:
    found = commands_in((ROOT / "Containerfile").read_text())
    assert found
    for words in found:
        check_known(words)


def test_a_word_that_is_none_is_found() -> None:
    with pytest.raises(AssertionError):
        check_known(["model", "x", "--no-such-option"])
