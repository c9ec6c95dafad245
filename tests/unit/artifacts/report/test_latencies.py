"""Latency percentiles, from single requests or from the record."""

from __future__ import annotations

from pathlib import Path

import pytest
from reported_run import reported_run

from artifacts.report.figure import Names
from artifacts.report.latencies import burst, latency_figures, timings_of
from artifacts.report.run_evidence import RunEvidence
from recipes.schema import Workload


def test_timings_of_requests() -> None:
    found = timings_of(
        {
            "ttfts": [0.5, 0.25, 0.75, 0.0],
            "itls": [[0.1, 0.3], [], [0.2], []],
            "output_lens": [3, 1, 2, 0],
            "errors": ["", "", "broken off", ""],
        }
    )
    assert found["ttft"] == [500.0, 250.0]
    assert found["tpot"] == pytest.approx([200.0])  # one token has none after the first
    assert found["itl"] == pytest.approx([100.0, 300.0])
    assert found["e2e"] == pytest.approx([900.0, 250.0])


def test_a_figure_a_metric(tmp_path: Path) -> None:
    made = reported_run(tmp_path)
    figures = latency_figures(RunEvidence(made.report, made.store), Names())
    assert [figure.name for figure in figures] == [
        f"figure-latency-{metric}" for metric in ("ttft", "tpot", "itl", "e2e")
    ]
    assert [row[0] for row in figures[1].table.rows] == ["baseline", "fp8-dynamic", "awq-w4a16"]
    assert figures[1].table.rows[0][1:] == ("20.0",) * 4
    assert figures[3].table.rows[1][1] == "140.0"
    (note,) = figures[0].notes
    assert note.startswith("baseline, fp8-dynamic, awq-w4a16: input tokens 128, output tokens 32")
    assert "; 0 requests failed; 50% of the requests begin together" in note


@pytest.mark.parametrize(
    ("workload", "share"),
    [({"requests": 256, "concurrency": 64}, "25%"), ({"requests": 4, "concurrency": 8}, "100%")],
)
def test_the_share_of_the_starting_burst_is_told(workload: dict[str, int], share: str) -> None:
    told = burst(Workload(input_tokens=1, output_tokens=1, **workload))
    assert f"; {share} of the requests begin together" in told


def test_percentiles_of_the_record_where_requests_are_gone(tmp_path: Path) -> None:
    made = reported_run(tmp_path)
    for file in tmp_path.rglob("requests.json"):
        file.unlink()
    evidence = RunEvidence(made.report, made.store)
    figures = latency_figures(evidence, Names())
    assert len(figures) == 3  # the record has no end-to-end times
    assert figures[0].table.rows[0] == ("baseline", "100.0", "-", "-", "-")
    assert "baseline: the timings of single requests are not kept" in evidence.missing
