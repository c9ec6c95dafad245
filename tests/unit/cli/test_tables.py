"""Results as people read them: what each kind of verdict shows, and that odd names do no harm."""

from __future__ import annotations

from pathlib import Path

import pytest
from sample_reports import (
    COMMAND,
    failed_variant_report,
    gate_report,
    run_report,
    speed_claim,
    stage_report,
    variant_report,
)

from artifacts.run_record import RunReport
from pipeline.cli.tables import (
    print_run,
    print_stages,
    print_table,
)
from pipeline.core.store import Store

Capture = pytest.CaptureFixture[str]


def shown(capsys: Capture, report: RunReport) -> list[str]:
    print_run(report)
    captured = capsys.readouterr()
    assert captured.err == ""
    return [" ".join(line.split()) for line in captured.out.splitlines() if line.strip()]


def test_a_speed_note_is_said_once(capsys: Capture) -> None:
    slow = speed_claim(note="measured on a CPU", verdict="fail", estimate=0.004)
    variants = [
        variant_report(speed=[slow]),
        variant_report(recipe="awq-w4a16", speed=[slow]),
    ]
    lines = shown(capsys, run_report(variants=variants))
    assert lines.count("speed: measured on a CPU") == 1
    assert sum("x 0.00 (> x" in line for line in lines) == 2


def test_what_the_cpu_had_the_profile_change_is_said(capsys: Capture) -> None:
    report = run_report()
    cpu_overrides = {"kv-cache-not-fp8": "this CPU [lacks] it"}
    report = report.model_copy(
        update={"command": {**report.command, "cpu_overrides": cpu_overrides}}
    )
    assert "CPU override kv-cache-not-fp8: this CPU [lacks] it" in shown(capsys, report)


def test_brackets_are_no_markup(capsys: Capture) -> None:
    odd = "./models/[bold]v2[/italic]"
    gate = gate_report(name="[red]here[/blue]", verdict="fail")
    variant = variant_report(
        gates=[gate],
        verdict="fail",
        promoted=False,
        reason="[link]it failed",
        speed=[speed_claim(note="[dim]note[/]")],
    )
    report = run_report(command=COMMAND | {"checkpoint": odd}, variants=[variant], run="[1]")
    text = "\n".join(shown(capsys, report))
    for words in (odd, "[red]here[/blue]", "[link]it failed", "[dim]note[/]", "runs [1]"):
        assert words in text


def test_without_a_terminal_there_are_no_escape_codes(capsys: Capture) -> None:
    print_run(run_report())
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert max(len(line.rstrip()) for line in out.splitlines()) <= 132


def test_stages_show_where_their_evidence_lies(capsys: Capture, tmp_path: Path) -> None:
    store = Store(Path("s"))
    stages = [
        stage_report(name="evaluate mmlu", stage="evaluate", key="e1", seconds=61.04),
        stage_report(name="serve", key=None, variant="baseline"),
        stage_report(status="failed", key="gone"),
    ]
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.chdir(tmp_path)
        store.stage_folder("evaluate", "e1").mkdir(parents=True)
        print_stages(run_report(stages=stages), store, paths=True)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "evaluate mmlu fp8-dynamic ran 61.0 s" in lines
    assert "serve baseline ran 1.2 s" in lines
    assert "judge fp8-dynamic failed 1.2 s" in lines
    assert "evaluate mmlu, fp8-dynamic: s/stages/evaluate/e1" in lines
    assert not any("judge/gone" in line for line in lines)


def test_paths_can_be_copied_whole(capsys: Capture, tmp_path: Path) -> None:
    """From a stage's row, a reason and an error: a fold in the midst would be copied, too."""
    store = Store(tmp_path / ("s" * 150))
    store.stage_folder("evaluate", "e1").mkdir(parents=True)
    path = f"/{'a' * 200}/worker.log"
    error = {"kind": "StoreError", "message": "no", "where": f"{path}.2", "hint": ""}
    report = run_report(
        variants=[failed_variant_report(reason=f"it died\n  where: {path}")],
        stages=[stage_report(name="evaluate mmlu", stage="evaluate", key="e1")],
        status="failed",
        exit_code=1,
        error=error,
    )
    print_run(report, is_shown=True)
    print_stages(report, store, paths=True)
    lines = capsys.readouterr().out.splitlines()
    for whole in (path, f"{path}.2", str(store.stage_folder("evaluate", "e1"))):
        assert any(whole in line for line in lines)


def test_long_cells_are_folded_and_not_cut(capsys: Capture) -> None:
    print_table(["tag", "value"], [["prepare.serving", "x" * 300]])
    assert capsys.readouterr().out.count("x") == 300
