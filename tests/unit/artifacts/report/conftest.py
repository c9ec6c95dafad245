"""A run to report, made once; a test that changes it gets a separate copy."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_run import FakeRun
from reported_run import reported_run

from artifacts.report.reported_run import ReportedRun


@pytest.fixture(scope="session")
def kept_run(tmp_path_factory: pytest.TempPathFactory) -> FakeRun:
    """To read only."""
    return reported_run(tmp_path_factory.mktemp("kept_run") / "store")


@pytest.fixture
def made(kept_run: FakeRun, tmp_path: Path) -> FakeRun:
    """To change as one likes."""
    return kept_run.copy_to(tmp_path / "store")


@pytest.fixture
def evidence(made: FakeRun) -> ReportedRun:
    return ReportedRun(made.report, made.store)
