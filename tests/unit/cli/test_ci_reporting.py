"""A command inside of a CI job: the files it leaves, its exit code, and what it prints."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from sample_reports import (
    REQUEST,
    failed_variant_report,
    gate_report,
    run_report,
    variant_report,
)
from typer.testing import CliRunner, Result

from artifacts.run_record import RunReport
from pipeline.cli.ci import CiReporting, is_in_ci
from pipeline.cli.main import app
from pipeline.run import gate as endpoint_gate
from pipeline.run import model as whole_run
from prepare.errors import StoreError

PREPARE = (sys.executable, "-m", "prepare")
NOT_PASSED: dict[str, Any] = {"promoted": False, "registry_version": None}


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [each for each in os.environ if each.startswith("PREPARE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PREPARE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CI", "true")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    monkeypatch.setenv("GITHUB_OUTPUT", str(tmp_path / "outputs"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def outputs(job: Path, name: str = "outputs") -> dict[str, str]:
    return dict(line.split("=", 1) for line in (job / name).read_text().splitlines())  # type: ignore[misc]


def finished(monkeypatch: pytest.MonkeyPatch, report: RunReport) -> None:
    monkeypatch.setattr(whole_run, "run_model", lambda *_, **__: report)
    monkeypatch.setattr(endpoint_gate, "run_gate", lambda *_: report)


def model(*options: str) -> Result:
    return CliRunner().invoke(app, ["model", "demo:smollm2-135m", *options])


def failed(**changes: Any) -> RunReport:
    no = gate_report(verdict="fail", reason="lost 3 points")
    variant = variant_report(verdict="fail", reason="mmlu failed", gates=[no], **NOT_PASSED)
    return run_report(exit_code=4, variants=[variant], **changes)


RUNS = {
    0: run_report(),
    1: run_report(exit_code=1, variants=[failed_variant_report()]),
    4: failed(),
    5: run_report(
        exit_code=5,
        variants=[variant_report(verdict="undecided", reason="more is needed", **NOT_PASSED)],
    ),
}


# --- a run that has a report --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "verdict"), [(0, "pass"), (1, "error"), (4, "fail"), (5, "undecided")]
)
def test_the_exit_code_and_the_files_say_the_same(
    job: Path, monkeypatch: pytest.MonkeyPatch, code: int, verdict: str
) -> None:
    finished(monkeypatch, RUNS[code])
    result = model()
    assert result.exit_code == code
    found = outputs(job)
    assert (found["verdict"], found["exit_code"]) == (verdict, str(code))
    junit = job / "home" / "store" / "runs" / RUNS[code].run / "prepare-junit.xml"
    assert found["junit"] == str(junit)
    assert f"JUnit report: {junit}" in result.stderr
    root = ET.parse(junit).getroot()
    assert (int(root.attrib["failures"]) + int(root.attrib["errors"]) == 0) == (code == 0)
    assert (job / "summary.md").read_text().startswith(f"## prepare: {verdict}\n")


def test_without_ci_nothing_is_written_but_what_was_asked_for(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished(monkeypatch, failed())
    result = model("--no-ci")
    assert result.exit_code == 4
    assert list(job.iterdir()) == []
    model("--no-ci", "--junit", "junit.xml")
    assert [path.name for path in job.iterdir()] == ["junit.xml"]


# --- what comes to no report --------------------------------------------------------------------


def run(job: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PREPARE, *arguments], capture_output=True, text=True, timeout=60, check=False, cwd=job
    )


def test_a_run_that_fails_for_real(job: Path) -> None:
    empty = job / "empty-checkpoint"
    empty.mkdir()
    done = run(job, "model", str(empty), "--profile", "cpu", "--policy", "demo")
    assert done.returncode == 2
    found = outputs(job)
    assert (found["verdict"], found["exit_code"]) == ("error", "2")
    assert Path(found["junit"]).parent == job / "home" / "store" / "runs" / found["run"]
    (case,) = ET.parse(found["junit"]).findall(".//testcase")
    error = case.find("error")
    assert error is not None
    assert str(empty) in (error.text or "")
    assert "use the folder with config.json" in (job / "summary.md").read_text()


def test_a_wrong_option_is_told_too(job: Path) -> None:
    done = run(job, "model", "demo:smollm2-135m", "--recipe", "nope", "--junit", "junit.xml")
    assert done.returncode == 2
    assert outputs(job) == outputs(job) | {"verdict": "error", "exit_code": "2", "run": ""}
    assert "there is no recipe 'nope'" in (job / "junit.xml").read_text()
    assert "where: --recipe nope" in done.stderr
    settings = job / "own.yaml"
    settings.write_text("nonsense: 1\n")
    assert run(job, "--settings", "own.yaml", "model", "demo:smollm2-135m").returncode == 2
    assert "nonsense" in (job / "summary.md").read_text()


@pytest.mark.parametrize(
    ("error", "code", "verdict"),
    [
        (StoreError("the disk is full"), "1", "error"),
        (ZeroDivisionError("x / 0"), "3", "error"),
        (KeyboardInterrupt(), "130", "interrupted"),
    ],
)
def test_whatever_ends_a_run_is_told_and_goes_on(
    job: Path, error: BaseException, code: str, verdict: str
) -> None:
    reporting = CiReporting(REQUEST, ci=True, junit=job / "junit.xml", outputs=None, as_json=False)
    with pytest.raises(type(error)), reporting.opened(None):
        raise error
    assert (outputs(job)["exit_code"], outputs(job)["verdict"]) == (code, verdict)
    assert ET.parse(job / "junit.xml").find(".//error") is not None


# --- whether this is CI -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, False),
        ("", False),
        ("0", False),
        ("false", False),
        ("No", False),
        ("1", True),
        ("true", True),
        ("woodpecker", True),
    ],
)
def test_ci_is_on_where_the_variable_says_so(value: str | None, expected: bool) -> None:
    environ = {} if value is None else {"CI": value}
    assert is_in_ci(None, environ) is expected
    assert is_in_ci(True, environ) is True
    assert is_in_ci(False, environ) is False
