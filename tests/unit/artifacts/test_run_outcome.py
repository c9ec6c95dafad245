"""How a run ended is said in the same words by the terminal, the report's page and CI."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ci_reports import RUNS
from sample_reports import run_report

from artifacts.ci import markdown_summary
from artifacts.report.page import run_page
from artifacts.report.run_evidence import RunEvidence
from artifacts.run_outcome import (
    champion_of,
    headline,
    list_passed,
    next_command,
    next_steps,
    outcome,
    verdict_of,
)
from pipeline.cli.tables import last_line
from pipeline.core.errors import ExitCode
from pipeline.core.escape import markdown
from pipeline.core.store import Store


@pytest.mark.parametrize(
    ("code", "verdict"),
    [
        (ExitCode.SUCCESS, "pass"),
        (ExitCode.EXPECTED_ERROR, "error"),
        (ExitCode.USAGE, "error"),
        (ExitCode.UNEXPECTED, "error"),
        (ExitCode.GATES_FAILED, "fail"),
        (ExitCode.UNDECIDED, "undecided"),
        (ExitCode.INTERRUPTED, "interrupted"),
    ],
)
def test_the_verdict_is_what_the_exit_code_says(code: int, verdict: str) -> None:
    assert verdict_of(run_report(exit_code=code, variants=[])) == verdict


def test_every_exit_code_has_a_verdict() -> None:
    for code in ExitCode:
        report = run_report(exit_code=int(code), variants=[])
        assert verdict_of(report)
        if code != ExitCode.SUCCESS:
            assert headline(report)
            assert next_steps(report)


def test_a_run_that_is_not_over_has_no_verdict() -> None:
    with pytest.raises(ValueError, match="has not ended"):
        verdict_of(run_report(exit_code=None, status="running"))


def test_who_passed_and_who_was_promoted() -> None:
    assert list_passed(RUNS["not promoted"]) == ["fp8-dynamic", "w8a8"]
    assert champion_of(RUNS["not promoted"]) is None
    champion: Any = champion_of(RUNS["promoted"])
    assert champion.recipe == "fp8-dynamic"


@pytest.mark.parametrize("run", RUNS)
def test_everyone_says_the_same(run: str, tmp_path: Path) -> None:
    report = RUNS[run]
    page = run_page(RunEvidence(report, Store(tmp_path)))
    assert f">{outcome(report)}</span> {headline(report)}</h1>" in " ".join(page.split())
    assert markdown(headline(report)) in markdown_summary(report)
    assert last_line(report).endswith(f"Next: {next_command(report)}")
    if verdict_of(report) != "undecided":
        assert f"`{next_command(report)}`" in " ".join(next_steps(report))


@pytest.mark.parametrize("status", ["running", "killed"])
def test_a_run_that_is_not_over_is_told_too(status: str) -> None:
    report = run_report(status=status, exit_code=None, variants=[])
    assert outcome(report) == status
    assert headline(report) == f"the run is {status}"
    assert next_command(report) == f"prepare runs {report.run}"


def test_a_promotion_that_failed_is_not_told_as_a_pass() -> None:
    """Its variants passed, and the registry did not answer."""
    error = {"kind": "RegistryError", "message": "no answer", "where": "x", "hint": "wait"}
    failed = {"status": "failed", "exit_code": 1, "error": error}
    report = RUNS["not promoted"].model_copy(update=failed)
    assert (outcome(report), headline(report)) == ("error", "no answer")
    assert next_command(report) == f"prepare runs {report.run}"
    gate = report.model_copy(update={"kind": "gate"})
    assert next_command(gate) == f"prepare runs {report.run}"
