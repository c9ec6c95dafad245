"""The report finds what the real runner leaves in a store: names of stages, roles."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_run import ONE, TWO, FakeRun, flipping, policy
from page_parts import PageParts
from pretend_stages import PretendModels

from artifacts.report.page import run_page
from artifacts.report.reported_run import ReportedRun
from artifacts.run_record import RunReport
from prepare.store import Store


@pytest.fixture
def bench(tmp_path: Path) -> FakeRun:
    models = PretendModels(flipping(4))
    return FakeRun(tmp_path, models, policy(noise_floor_questions=16), recipes=(ONE, TWO))


def evidence_of(report: RunReport, bench: FakeRun) -> ReportedRun:
    return ReportedRun(report, Store(bench.root))


def test_the_answers_are_found(bench: FakeRun) -> None:
    report = bench.run()
    evidence = evidence_of(report, bench)
    for variant in report.variants:
        (gate,) = variant.gates
        assert gate.look > 1  # else this shows nothing
        ((suite, kept),) = evidence.collect_answers(variant.recipe)
        assert (suite, kept.result.n) == ("code", gate.n)
    assert evidence.missing == []


def test_a_server_that_does_not_come_up(bench: FakeRun) -> None:
    bench.models.broken.add(TWO)
    page = PageParts(run_page(evidence_of(bench.run(), bench)))
    assert "two error" in page.words
    assert "the server of two does not come up" in page.words
