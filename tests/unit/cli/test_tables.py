"""Results as people read them: what each kind of verdict shows, and that odd names do no harm."""

from __future__ import annotations

import pytest
from sample_reports import (
    RESOLVED,
    gate_report,
    run_report,
    speed_gate_report,
    variant_report,
)

from artifacts.run_record import RunReport
from pipeline.cli.tables import (
    print_run,
)

Capture = pytest.CaptureFixture[str]


def shown(capsys: Capture, report: RunReport) -> list[str]:
    print_run(report)
    captured = capsys.readouterr()
    assert captured.err == ""
    return [" ".join(line.split()) for line in captured.out.splitlines() if line.strip()]


def test_brackets_are_no_markup(capsys: Capture) -> None:
    odd = "./models/[bold]v2[/italic]"
    gate = gate_report(name="[red]here[/blue]", verdict="fail")
    variant = variant_report(
        gates=[gate],
        verdict="fail",
        promoted=False,
        reason="[link]it failed",
        speed=[speed_gate_report(note="[dim]note[/]")],
    )
    report = run_report(
        resolved=RESOLVED.model_copy(update={"checkpoint": odd}), variants=[variant], run="[1]"
    )
    text = "\n".join(shown(capsys, report))
    for words in (odd, "[red]here[/blue]", "[link]it failed", "[dim]note[/]", "runs '[1]'"):
        assert words in text


def test_the_promoted_variant_comes_first(capsys: Capture) -> None:
    """In the table and in the reasons; what a failed variant was not measured on is left out."""
    failed = variant_report(
        recipe="small",
        verdict="fail",
        promoted=False,
        reason="failed on mmlu",
        speed=[speed_gate_report(verdict="undecided", estimate=None, reason="it was left out")],
    )
    lines = shown(capsys, run_report(variants=[failed, variant_report(recipe="large")]))
    rows = [line for line in lines if line.startswith(("large", "small"))]
    assert [row.partition(",")[0].partition(":")[0] for row in rows] == ["large", "small"] * 2
    assert not any("it was left out" in line for line in lines)
