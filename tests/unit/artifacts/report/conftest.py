"""A run to report, made once; a test that changes it gets a copy of its own."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from reported_run import ReportedRun, reported_run

from artifacts.report.run_evidence import RunEvidence
from pipeline.core.store import Store


@pytest.fixture(scope="session")
def kept_run(tmp_path_factory: pytest.TempPathFactory) -> ReportedRun:
    """To read only."""
    return reported_run(tmp_path_factory.mktemp("kept_run"))


@pytest.fixture
def made(kept_run: ReportedRun, tmp_path: Path) -> ReportedRun:
    """To change as one likes."""
    shutil.copytree(kept_run.store.root, tmp_path / "store")
    return ReportedRun(
        Store(tmp_path / "store"), kept_run.texts, list(kept_run.stages), kept_run.report
    )


@pytest.fixture
def evidence(made: ReportedRun) -> RunEvidence:
    """Of the run in the copy."""
    return RunEvidence(made.report, made.store)
