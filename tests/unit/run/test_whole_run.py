from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from listener import Listener
from sample_reports import failed_variant_report, variant_report

from artifacts.requests import ModelRequest
from artifacts.run_record import RunReport, VariantReport, exit_code_of
from pipeline.cli.tables import last_lines
from pipeline.environments.settings import Settings
from pipeline.plan.checkpoint_resolver import Located
from pipeline.plan.plan import Plan
from pipeline.run import model as whole_run
from prepare.errors import ExitCode
from recipes.catalog import load_policy
from recipes.checkpoints.checkpoint import Checkpoint, CheckpointFile


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        (["pass"], ExitCode.SUCCESS),
        (["error", "fail", "pass"], ExitCode.SUCCESS),
        (["fail", "error"], ExitCode.EXPECTED_ERROR),
        (["undecided", "fail", "skipped"], ExitCode.GATES_FAILED),
        (["undecided", "skipped"], ExitCode.UNDECIDED),
        ([], ExitCode.UNDECIDED),
    ],
)
def test_the_exit_code_is_that_of_the_verdicts(verdicts: list[str], code: ExitCode) -> None:
    assert exit_code_of(verdicts) == code


def run_to(
    verdicts: list[VariantReport],
    promote: bool,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    registry: str | None = None,
    run_id: str | None = None,
) -> RunReport:
    def judged(servers: Any, state: Any, **_: Any) -> None:
        for report in verdicts:
            servers.run.log.note_variant(report)

    file = CheckpointFile(name="config.json", size=0, sha256="0" * 64)
    checkpoint = Checkpoint("c", "c/config.json", {}, {}, 0, here=folder, files=(file,))
    locator = SimpleNamespace(all=lambda _: Located(checkpoint))
    monkeypatch.setattr(whole_run, "Locator", lambda *_: locator)
    policy = load_policy("demo")
    planned = Plan(policy, {}, None, (), None)  # type: ignore[arg-type]
    monkeypatch.setattr(whole_run, "make_plan", lambda *_: planned)
    monkeypatch.setattr(whole_run, "carry_out", judged)
    monkeypatch.setattr(whole_run, "check_plan", lambda *_: None)
    monkeypatch.setattr(whole_run, "check_serving", lambda *_: None)
    request = ModelRequest(
        checkpoint="demo:smollm2-135m",
        recipes=("fp8-dynamic",),
        profile="cpu",
        policy="demo",
        name=None,
        registry=registry,
        eval_data=None,
        trust_remote_code=False,
        promote=promote,
    )
    settings = Settings(home=folder / "home", store=folder / "store", environments={})
    return whole_run.run_model(request, settings, Listener(), run_id)


def test_without_promotion_what_passed_is_not_registered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any) -> None:
        raise AssertionError("it was promoted")

    monkeypatch.setattr(whole_run, "promote_passed", never)
    passed = variant_report(promoted=False, registry_version=None)
    report = run_to([failed_variant_report(), passed], False, tmp_path, monkeypatch)
    assert (report.status, report.exit_code) == ("finished", 0)
    assert report.request.promote is False
    assert not any(variant.promoted for variant in report.variants)
    assert not (tmp_path / "store" / "registry.db").exists()
    failed = run_to([failed_variant_report()], False, tmp_path, monkeypatch)
    assert failed.exit_code == 1


def test_a_further_copy_leaves_the_outcome_to_the_main_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It printed that nothing was promoted, and wrote that for CI."""
    monkeypatch.setenv("PREPARE_COPY", "1")
    passed = variant_report(promoted=False, registry_version=None)
    report = run_to([passed], True, tmp_path, monkeypatch, run_id="nightly")
    assert (report.status, report.exit_code) == ("running", None)
    assert "promoted" not in last_lines(report)[0]
    assert last_lines(report)[0].endswith("Next: prepare runs nightly")


def test_a_registry_that_would_refuse_is_told_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file lies where the registry's folder is to be."""
    (tmp_path / "file").touch()
    registry = f"sqlite:///{tmp_path / 'file'}/registry.db"
    passed = [variant_report(promoted=False, registry_version=None)]
    report = run_to(passed, True, tmp_path, monkeypatch, registry)
    assert (report.status, report.exit_code) == ("failed", 2)
    assert report.variants == []
    assert report.error is not None
    assert "--no-promote" in report.error["hint"]
    measured = run_to(passed, False, tmp_path, monkeypatch, registry)
    assert measured.exit_code == 0
