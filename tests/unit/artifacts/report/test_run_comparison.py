"""Two runs side by side."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_run import FakeRun
from page_parts import PageParts
from reported_run import reported_run
from sample_reports import failed_variant_report, run_report

from artifacts.report import run_comparison
from artifacts.report.figure import UniqueIds
from artifacts.report.page import comparison_page
from artifacts.report.run_evidence import RunEvidence
from pipeline.core.store import Store


@pytest.fixture
def sides(made: FakeRun, tmp_path: Path) -> run_comparison.Sides:
    """A run, and a worse one with another engine and a slower variant."""
    second = reported_run(
        tmp_path / "second", run="20261122-100000-000001", lost=0.3, engine_version="0.33.0"
    )
    return (
        RunEvidence(made.report, made.store),
        RunEvidence(second.report, second.store),
    )


def test_only_what_changed_is_listed(sides: run_comparison.Sides) -> None:
    changed = run_comparison.changed_facts(sides)
    assert ("fp8-dynamic: engine's version", "0.32.0", "0.33.0") in changed.rows
    assert [row[0].partition(": ")[2] for row in changed.rows] == ["engine's version"] * 3


def test_the_same_run_twice_has_no_change(sides: run_comparison.Sides) -> None:
    twice = (sides[0], sides[0])
    assert run_comparison.changed_facts(twice).rows == []
    assert all(row[5] == "+0.00" for row in run_comparison.score_table(twice).rows)
    assert all(row[3] == row[4] for row in run_comparison.speed_table(twice).rows)


def test_scores_and_verdicts_of_both(sides: run_comparison.Sides) -> None:
    rows = {row[0]: row for row in run_comparison.score_table(sides).rows}
    first, second = (side.report.variants[0].gates[0] for side in sides)
    row = rows["fp8-dynamic, mmlu"]
    assert row[5] == f"{100 * (second.candidate - first.candidate):+.2f}"
    assert row[6] == f"{first.verdict} / {second.verdict}"
    assert f"(n {second.n})" in row[2]


def test_the_figure_has_both_runs(sides: run_comparison.Sides) -> None:
    (figure,) = run_comparison.change_figures(sides, UniqueIds())
    assert [trace["name"] for trace in figure.data] == ["run A", "run B"]
    assert len(figure.data[0]["x"]) == 6
    assert len(figure.table.rows) == 12
    assert all(min(trace["error_x"]["array"]) >= 0 for trace in figure.data)


def test_a_variant_of_one_run_only(made: FakeRun, tmp_path: Path) -> None:
    other = run_report(run="20261123-1", variants=[failed_variant_report()], stages=[])
    sides = (RunEvidence(made.report, made.store), RunEvidence(other, Store(tmp_path / "empty")))
    rows = {row[0]: row for row in run_comparison.verdict_table(sides).rows}
    assert rows["fp8-dynamic"] == ("fp8-dynamic", "pass", "-", "150.0 MB", "-")
    assert rows["awq-w4a16"] == ("awq-w4a16", "promoted", "error", "100.0 MB", "-")
    page = PageParts(comparison_page(*sides))
    assert "Two runs side by side" in page.words
    assert "fp8-dynamic, speed ratio.short 80.0 - x 2.000 (" in page.words


def test_the_page_is_as_closed_as_that_of_one_run(sides: run_comparison.Sides) -> None:
    page = PageParts(comparison_page(*sides))
    assert page.addresses() == []
    assert page.handlers() == []
    assert len(page.running) == 2
    assert all(page.may_run(script) for script in page.running)
    assert list(page.figures) == ["figure-changes"]
