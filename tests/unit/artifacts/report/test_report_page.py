"""The page as a whole: complete, self-contained, and inert to what a model says."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from fake_run import ONE, FakeRun
from finished_stage import put_record
from page_parts import PageParts
from reported_run import Texts, reported_run
from sample_reports import (
    failed_variant_report,
    gate_report,
    run_report,
    speed_gate_report,
    variant_report,
)

from artifacts.report.figures import tradeoff_figures
from artifacts.report.page import pairs_table, run_page
from artifacts.report.reported_run import ReportedRun
from prepare.store import Store

HOSTILE = "</script></pre><img src=x onerror=alert(1)><script>alert(2)</script>\"'>{{7*7}}"
HALF_A_PAIR = "\ud800"
SECTIONS = ("gates", "quality", "answers", "provenance")


def page_of(made: FakeRun) -> PageParts:
    return PageParts(run_page(ReportedRun(made.report, made.store)))


@pytest.fixture(scope="module")
def page(kept_run: FakeRun) -> PageParts:
    return page_of(kept_run)


def test_every_section_and_a_way_to_it(page: PageParts) -> None:
    ids = [value for _, name, value in page.attributes if name == "id"]
    links = [value[1:] for _, name, value in page.attributes if name == "href" and value[0] == "#"]
    assert len(ids) == len(set(ids))
    assert set(links) == {"main", *SECTIONS} <= set(ids)


def test_one_file_that_asks_for_nothing(page: PageParts) -> None:
    assert page.addresses() == []
    assert page.handlers() == []
    assert page.policy["default-src"] == "'none'"
    assert set(page.policy) == {
        "default-src",
        "script-src",
        "style-src",
        "img-src",
        "base-uri",
        "form-action",
    }
    assert "unsafe" not in page.policy["script-src"]
    assert len(page.running) == 2
    assert all(page.may_run(script) for script in page.running)


def test_what_a_model_says_is_inert(tmp_path: Path) -> None:
    """Every text of others: questions, answers, subjects, modules, reasons, options."""
    texts = Texts(
        question=HOSTILE + HALF_A_PAIR,
        answer=HOSTILE + HALF_A_PAIR,
        subject=HOSTILE,
        module="model.layers.{layer}." + HOSTILE.replace("{{7*7}}", ""),
    )
    made = reported_run(tmp_path, texts, lost=0.5)
    made.save(
        notes=[HOSTILE],
        registered_name=HOSTILE,
        request=replace(made.report.request, checkpoint=HOSTILE),
        resolved=made.report.resolved.model_copy(update={"checkpoint": HOSTILE}),
    )
    page = page_of(made)
    assert len(page.running) == 2
    assert all(page.may_run(script) for script in page.running)
    assert page.handlers() == []
    assert page.addresses() == []
    assert "img" not in page.elements
    assert page.text.count("<img src=x onerror=alert(1)>") > 20
    assert "{{7*7}}" in page.text
    assert page.figures  # a </script> in a label would have ended the JSON


def test_a_run_that_was_killed_says_what_it_has(made: FakeRun) -> None:
    stages = [s for s in made.report.stages if s.name != "judge" and s.variant != "awq-w4a16"]
    made.save(status="killed", exit_code=None, variants=[], stages=stages)
    page = page_of(made)
    assert "killed the run is killed" in page.words
    assert "fp8-dynamic no verdict the run is killed: it ended before this variant" in page.words
    assert "Measured, not judged: mmlu: " in page.words
    assert "No variant was judged, so there is nothing to draw." in page.words
    assert page.figures == {}


def test_a_run_that_failed_shows_its_error(tmp_path: Path) -> None:
    report = run_report(
        status="failed",
        exit_code=1,
        checkpoint=None,
        variants=[failed_variant_report()],
        stages=[],
        error={
            "kind": "StoreError",
            "message": "the disk is full",
            "where": "/a",
            "hint": "make room",
        },
    )
    html = run_page(ReportedRun(report, Store(tmp_path)))
    page = PageParts(html)
    assert "error the disk is full" in page.words
    assert "make room" in page.words
    assert "the worker of 'quantize' ended with exit code 137" in page.words
    assert "where: /logs/worker.log" in page.words
    assert page.figures == {}
    assert len(page.running) == 1  # without plots no plotting library
    assert len(html) < 50_000


@pytest.mark.parametrize("stage", ["evaluate", "questions", "judge"])
@pytest.mark.parametrize("damage", ["gone", "torn", "another version's", "a pipe"])
def test_any_damaged_stage_leaves_a_report(made: FakeRun, stage: str, damage: str) -> None:
    for folder in (made.store.root / "stages" / stage).iterdir():
        for file in folder.iterdir():
            if damage in ("gone", "a pipe"):
                file.unlink()
                if damage == "a pipe":
                    os.mkfifo(file)
            elif damage == "torn":
                file.write_bytes(file.read_bytes()[:-20])
            elif file.name == "stage.json":
                record = made.store.find(stage, folder.name)
                assert record is not None
                put_record(made.store, record.model_copy(update={"parameters": {}, "result": {}}))
    page = page_of(made)
    assert "awq-w4a16 passed and was promoted" in page.words


def test_numbers_that_json_lacks_do_not_void_the_plots(tmp_path: Path) -> None:
    gate = gate_report(bound=float("-inf"), upper_bound=float("inf"))
    report = run_report(variants=[variant_report(gates=[gate])])
    page = PageParts(run_page(ReportedRun(report, Store(tmp_path))))
    assert page.figures


@pytest.mark.parametrize("loads", [(1, 64, 256), (64,)])
def test_ratios_over_requests_in_flight_are_one_curve_a_variant(
    tmp_path: Path, loads: tuple[int, ...]
) -> None:
    ratios = {1: 1.48, 64: 1.1, 256: 0.93}
    gates = [
        speed_gate_report(
            name=f"speed ratio.at{concurrency}",
            concurrency=concurrency,
            estimate=ratios[concurrency],
            interval=(ratios[concurrency] - 0.02, ratios[concurrency] + 0.02),
        )
        for concurrency in reversed(loads)
    ]
    report = run_report(variants=[variant_report(recipe="awq-w4a16", gates=gates)])
    page = PageParts(run_page(ReportedRun(report, Store(tmp_path))))
    curve = page.figures.get("figure-speed-concurrency")
    if len(loads) == 1:
        assert curve is None
        return
    assert curve is not None
    (trace,) = curve["data"]
    assert trace["x"] == [1, 64, 256]
    assert trace["y"] == [1.48, 1.1, 0.93]


@pytest.mark.parametrize("metric", ["same_decision", "acc"])
def test_decisions_by_number_of_tools_are_a_curve(tmp_path: Path, metric: str) -> None:
    shares = {"as logged": 0.96, "4 tools": 0.95, "16 tools": 0.9, "64 tools": 0.7}
    abilities = {"calls": 0.9, "answers": 0.99}
    groups = [
        {
            "group": name,
            "kind": "part" if name in abilities else "rung",
            "n": 60,
            "baseline": 0.98,
            "candidate": share,
            "flips": round(60 * (0.98 - share)),
        }
        for name, share in {**abilities, **shares}.items()
    ]
    gate = gate_report(name="agents", metric=metric, groups=groups)
    report = run_report(variants=[variant_report(recipe="awq-w4a16", gates=[gate])])
    page = PageParts(run_page(ReportedRun(report, Store(tmp_path))))
    curve = page.figures.get("figure-tools-0-0")
    if metric != "same_decision":  # other suites' groups are no order
        assert curve is None
        return
    assert curve is not None
    baseline, variant = curve["data"]
    assert variant["x"] == baseline["x"] == [*shares]
    assert variant["y"] == [100 * share for share in shares.values()]
    assert baseline["y"] == [98.0] * 4


def test_gated_pairs_are_a_table(tmp_path: Path) -> None:
    made = FakeRun(tmp_path / "store", kv=("fp8", "auto"))
    made.run()
    assert "Pairs of weights" not in run_page(ReportedRun(made.report, made.store))
    made.save(request=replace(made.report.request, kv=("fp8", "auto")))
    table = pairs_table(ReportedRun(made.report, made.store))
    assert table is not None
    names = [f"{ONE}.kv-{kv_format}" for kv_format in ("fp8", "auto")]
    rows = {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}
    assert list(rows) == names
    gates = len(made.report.variants[0].gates)
    assert {row["gates passed"] for row in rows.values()} == {f"{gates} of {gates}"}
    assert {row["verdict"] for row in rows.values()} == {"pass"}
    assert "Pairs of weights" in run_page(ReportedRun(made.report, made.store))


def test_the_front_tells_every_rung(tmp_path: Path) -> None:
    """Also one that was not asked, as a larger one did not pass."""
    rungs = [
        variant_report(),
        variant_report(recipe="awq-w4a16-plus-5", weights_bytes=120_000_000, verdict="fail"),
        failed_variant_report(weights_bytes=114_000_000, verdict="skipped"),
    ]
    front, *others = tradeoff_figures(run_report(variants=rungs), 269_000_000)
    rows = [(row[0], row[1], row[-1]) for row in front.table.rows]
    assert rows == [
        ("baseline", "269.0", ""),
        ("fp8-dynamic", "163.4", "pass, variant pass"),
        ("awq-w4a16-plus-5", "120.0", "pass, variant fail"),
        ("awq-w4a16", "114.0", "skipped"),
    ]
    assert len(front.data) == 3
    assert all("awq-w4a16" not in {row[0] for row in other.table.rows} for other in others)
