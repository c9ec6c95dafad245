"""How a run ended is said in the same words by the terminal, the report's page and CI."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ci_reports import RUNS
from sample_reports import run_report

from artifacts.ci import markdown_summary
from artifacts.command_line import read_command
from artifacts.report.page import run_page
from artifacts.report.run_evidence import RunEvidence
from artifacts.run_outcome import (
    baseline_lines,
    champion_of,
    headline,
    list_passed,
    next_command,
    next_steps,
    outcome,
    serving_lines,
    verdict_of,
)
from pipeline.cli.tables import last_line
from pipeline.core.errors import ExitCode
from pipeline.core.escape import markdown
from pipeline.core.store import Store
from recipes import catalog


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


def test_fp8_attention_and_fallbacks_are_told() -> None:
    command = {
        "cpu_overrides": {"float32": "bf16 is emulated"},
        "kv_cache_note": "FP8",
        "speculation": "ngram",
    }
    assert serving_lines(read_command(command)) == [
        "CPU override float32: bf16 is emulated",
        "KV cache: FP8",
        "speculative decoding: ngram",
    ]
    assert serving_lines(read_command({})) == []


@pytest.mark.parametrize("name", catalog.profile_names())
def test_a_profile_of_gpus_with_an_fp8_cache_says_what_it_does(name: str) -> None:
    profile = catalog.load_profile(name)
    if profile.accelerator == "cuda":
        is_fp8 = profile.kv_cache_dtype.startswith("fp8")
        assert (profile.kv_cache_note is not None) is is_fp8


def test_released_weights_are_named_as_the_baseline() -> None:
    assert baseline_lines(run_report()) == []
    source = {"ref": "org/name", "digest": "d", "quantized": "FP8"}
    (line,) = baseline_lines(run_report(checkpoint={"ref": "r", "digest": "d", "source": source}))
    assert line.endswith("verdicts are against the released FP8 weights")
