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
