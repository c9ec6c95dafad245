"""`prepare report` on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from sample_reports import run_report
from typer.testing import CliRunner

from pipeline.cli.main import app
from prepare.errors import UsageError
from prepare.private_files import write_atomically
from prepare.store import RUN_RECORD, RunFolders, Store

FIRST, SECOND = "20261120-090000-000001", "20261121-100000-000001"


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    for name in ("PREPARE_HOME", "PREPARE_SETTINGS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PREPARE_STORE", str(tmp_path / "store"))
    monkeypatch.chdir(tmp_path)
    found = Store(tmp_path / "store")
    for run in (FIRST, SECOND):
        write_atomically(
            RunFolders(found).make(run) / RUN_RECORD, run_report(run=run).model_dump_json()
        )
    return found


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["report", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout.strip()


def test_the_newest_run_into_a_file_of_its_name(tmp_path: Path) -> None:
    assert run() == str(tmp_path / f"report-{SECOND}.html")
    page = (tmp_path / f"report-{SECOND}.html").read_text()
    assert page.lstrip().startswith("<!doctype html>")
    assert SECOND in page


def test_a_link_stays_one(tmp_path: Path) -> None:
    target = tmp_path / "target.html"
    target.write_text("before")
    link = tmp_path / "link.html"
    link.symlink_to(target)
    run("-o", str(link))
    assert link.is_symlink()
    assert SECOND in target.read_text()


def test_a_file_that_cannot_be_written() -> None:
    with pytest.raises(UsageError) as caught:
        run("-o", "no/such/folder/report.html")
    assert "No such file or directory" in caught.value.message
    assert "--output" in caught.value.where
