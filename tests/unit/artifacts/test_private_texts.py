"""Private conversations stay in the store: no bundle, card, report or output has them."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_run import RECIPE, FakeRun
from pretend_stages import PretendModels

from artifacts.ci import junit_xml, markdown_summary
from artifacts.evidence.bundle import BUNDLE, open_bundle
from artifacts.evidence.verify import check_bundle
from artifacts.report.page import run_page
from artifacts.report.reported_run import ReportedRun
from pipeline.cli.report import report
from pipeline.cli.runs import runs
from pipeline.cli.tables import print_run
from pipeline.cli.verify import verify_run
from recipes.policy import Policy

SECRET = "sk-hunter2 is my key"
IDS = "7, 8, 9"
LOGS = {"kind": "fidelity", "margins": {"fp8": 0.4}}


def kept(variant: str, suite: str, number: int) -> float:
    return 0.99 if variant == "baseline" else 0.9


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> FakeRun:
    models = PretendModels(kept, 96, nats={"baseline": 0.1, RECIPE: 0.2}, private=SECRET)
    policy = Policy.model_validate({"name": "p", "summary": "s", "suites": {"logs": LOGS}})
    made = FakeRun(tmp_path_factory.mktemp("private") / "store", models, policy, (RECIPE,))
    made.run()
    assert made.report.variants[0].verdict == "pass"
    return made


def has_secret(content: bytes) -> bool:
    return any(text.encode() in content for text in (SECRET, SECRET[:10], IDS, "[7,8,9]"))


def test_the_store_has_it(run: FakeRun) -> None:
    kept = [file for file in run.root.rglob("*.jsonl") if has_secret(file.read_bytes())]
    assert {file.name for file in kept} >= {"texts.jsonl", "conversations.jsonl"}


def test_no_file_of_the_version_has_it(run: FakeRun) -> None:
    folder = run.bundle()
    with open_bundle(folder / BUNDLE) as (store, _):
        files = [*folder.rglob("*"), *store.root.rglob("*")]
        read = [file for file in files if file.is_file()]
        assert {"README.md", "answers.jsonl", "questions.jsonl"} <= {file.name for file in read}
        assert [file.name for file in read if has_secret(file.read_bytes())] == []
    assert check_bundle(folder).is_sound


def test_no_output_has_it(run: FakeRun, capsys: pytest.CaptureFixture[str]) -> None:
    print_run(run.report)
    runs(run.report.run, store=run.root)
    runs(run.report.run, store=run.root, as_json=True)
    assert verify_run(run.report.run, run.root, as_json=True)
    page = run_page(ReportedRun(run.report, run.store))
    told = [page, markdown_summary(run.report), "".join(capsys.readouterr())]
    assert not any(has_secret(text.encode()) for text in told)
    assert not has_secret(junit_xml(run.report))


def test_the_report_has_the_ten_worst_where_it_is_asked(run: FakeRun, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    report(run.report.run, output=file, with_conversations=True, store=run.root)
    page = file.read_text()
    assert page.count("user: sk-hunter2 is my key") == 10
    assert page.count("\u27e6sk-h\u27e7unter2 is my key") == 10
    assert page.count("\u27e6other\u27e7") == 10
