"""Latency percentiles of the loads that speed gates were measured with."""

from __future__ import annotations

from pathlib import Path

import pytest
from measured_loads import load_in_waves
from reported_run import reported_run

from artifacts.report.figure import UniqueIds
from artifacts.report.latencies import describe_loads, latency_figures, percentiles_of
from artifacts.report.run_evidence import RunEvidence


def test_percentiles_are_over_the_steady_parts_of_all_loads() -> None:
    found = percentiles_of([load_in_waves(seconds=1.0), load_in_waves(seconds=3.0)])
    assert found["ttft"][50] == pytest.approx(200.0)  # a tenth of each request
    assert found["ttft"][99] == pytest.approx(300.0)
    assert found["tpot"][50] == pytest.approx(200.0)  # nine tokens after the first
    assert found["latency"][90] == pytest.approx(3000.0)


def test_a_load_without_a_steady_part_has_none() -> None:
    assert percentiles_of([load_in_waves(waves=1)]) == {}


def test_a_figure_a_metric_with_the_baseline_beside_each_variant(tmp_path: Path) -> None:
    made = reported_run(tmp_path)
    figures = latency_figures(RunEvidence(made.report, made.store), UniqueIds())
    assert [figure.title.partition(":")[0] for figure in figures] == ["ratio.short"] * 3
    ttft, tpot, _ = figures
    assert [row[0] for row in ttft.table.rows] == ["baseline", "fp8-dynamic", "awq-w4a16"]
    assert ttft.table.rows[0][1:] == ("100.0",) * 4
    assert ttft.table.rows[1][1:] == ("50.0",) * 4
    assert tpot.table.rows[0][1:] == ("100.0",) * 4
    baseline, fp8, _ = ttft.notes
    assert baseline.startswith("baseline: short, ")
    assert fp8.endswith("4 in flight; 0 failed")


def test_how_a_load_comes_is_told() -> None:
    rate = load_in_waves(arrivals="rate", rate=3.0, concurrency=None, warmup_s=1.0, measured_s=5.0)
    assert describe_loads([rate]) == "chat, 40 requests in 1 loads, 3.0 a second; 0 failed"


def test_loads_that_are_gone_are_missing(tmp_path: Path) -> None:
    made = reported_run(tmp_path)
    for file in tmp_path.rglob("loads.jsonl"):
        file.unlink()
    evidence = RunEvidence(made.report, made.store)
    assert latency_figures(evidence, UniqueIds()) == []
    assert "the loads of fp8-dynamic ratio.short cannot be read" in evidence.missing
