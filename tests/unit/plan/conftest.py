"""Fixtures of the tests of what is asked of a run."""

from __future__ import annotations

from pathlib import Path

import pytest
from asked_run import Checkpoints

from pipeline.environments.settings import Settings


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home", store=tmp_path / "store")


@pytest.fixture
def checkpoints(tmp_path: Path, settings: Settings) -> Checkpoints:
    return Checkpoints(tmp_path / "model", settings)
