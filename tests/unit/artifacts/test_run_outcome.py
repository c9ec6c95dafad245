"""How a run ended is said in the same words by the terminal, the report's page and CI."""

from __future__ import annotations

from pathlib import Path

import pytest
from ci_reports import RUNS
from sample_reports import gate_report, run_report

from artifacts.ci import markdown_summary
from artifacts.report.page import run_page
from artifacts.report.reported_run import ReportedRun
from artifacts.run_outcome import (
    headline,
    next_command,
    next_steps,
    outcome,
    verdict_of,
)
from pipeline.cli.tables import last_lines
from prepare.errors import ExitCode
from prepare.escape import markdown
from prepare.store import Store
from recipes import catalog


def test_every_exit_code_has_a_verdict() -> None:
    for code in ExitCode:
        report = run_report(exit_code=int(code), variants=[])
        assert verdict_of(report)
        if code != ExitCode.SUCCESS:
            assert headline(report)
            assert next_steps(report)


@pytest.mark.parametrize("run", RUNS)
def test_everyone_says_the_same(run: str, tmp_path: Path) -> None:
    report = RUNS[run]
    page = run_page(ReportedRun(report, Store(tmp_path)))
    assert f">{outcome(report)}</span> {headline(report)}</h1>" in " ".join(page.split())
    assert markdown(headline(report)) in markdown_summary(report)
    assert last_lines(report)[0].endswith(f"Next: {next_command(report)}")
    if verdict_of(report) != "undecided":
        assert f"`{next_command(report)}`" in " ".join(next_steps(report))


def test_a_promotion_names_gates_that_did_not_pass() -> None:
    (run,) = [report for report in RUNS.values() if outcome(report) == "promoted"]
    gates = [gate_report(), gate_report(name="code", tier="supporting", verdict="undecided")]
    champion = run.variants[0].model_copy(update={"gates": gates, "promoted": True})
    said = headline(run.model_copy(update={"variants": [champion]}))
    assert said.endswith("; not shown on code (-0.1 points; at most 1 may be lost)")
    assert "passed on mmlu and" in said


@pytest.mark.parametrize("status", ["running", "killed"])
def test_a_run_that_is_not_over_is_told_too(status: str) -> None:
    report = run_report(status=status, exit_code=None, variants=[])
    assert outcome(report) == status
    assert headline(report) == f"the run is {status}"
    assert next_command(report) == f"prepare runs {report.run}"


@pytest.mark.parametrize("name", catalog.profile_names())
def test_a_profile_of_gpus_with_an_fp8_cache_says_what_it_does(name: str) -> None:
    profile = catalog.load_profile(name)
    if profile.accelerator == "cuda":
        is_fp8 = profile.kv_cache_dtype.startswith("fp8")
        assert (profile.kv_cache_note is not None) is is_fp8
