from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from pipeline.environments.build import RECORD_NAME, EnvironmentRecord
from pipeline.environments.definition import define, environment_folder
from pipeline.environments.environment import lock_file
from pipeline.environments.garbage_collection import collect
from pipeline.environments.settings import Settings
from prepare.file_locks import locked
from recipes.accelerator import Accelerator

OLD = "serve-cpu-0123456789abcdef"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path, store=tmp_path / "store")


def place(folder: Path, *, finished: bool = True, idle_days: float = 0) -> Path:
    (folder / "bin").mkdir(parents=True)
    (folder / "payload").write_bytes(b"x" * 100_000)
    if finished:
        record = EnvironmentRecord(
            key="serve-cpu",
            identity="0" * 64,
            python="3.11.7",
            versions={},
            size_bytes=1,
            built="2026-01-01T00:00:00+00:00",
        )
        (folder / RECORD_NAME).write_text(record.model_dump_json())
        then = time.time() - idle_days * 86_400
        os.utime(folder / RECORD_NAME, (then, then))
    return folder


def old(settings: Settings, *, idle_days: float) -> Path:
    return place(settings.home / "environments" / OLD, idle_days=idle_days)


def current(settings: Settings, *, finished: bool = True) -> Path:
    folder = environment_folder(settings.home, define("serve", Accelerator.CPU))
    return place(folder, finished=finished, idle_days=1000)


def test_an_outdated_one_goes(settings: Settings) -> None:
    folder = old(settings, idle_days=30)
    (removed,) = collect(settings, dry_run=False, older_than_days=7)
    assert removed.path == folder
    assert removed.reason == "outdated, not used for 30 days"
    assert removed.size_bytes >= 100_000
    assert not folder.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_those_of_an_image_or_a_site_stay() -> None:
    """Their locks cannot be taken, and `prepare gc` had removed the rest by then."""
    with tempfile.TemporaryDirectory() as name:  # pytest's own are closed to others
        home = Path(name)
        home.chmod(0o755)
        settings = Settings(home=home, store=home / "store")
        folder = old(settings, idle_days=30)
        os.seteuid(65534)
        try:
            assert collect(settings, dry_run=False, older_than_days=7) == []
        finally:
            os.seteuid(0)
        assert folder.exists()


def test_a_current_one_stays_however_old(settings: Settings) -> None:
    folder = current(settings)
    assert collect(settings, dry_run=False, older_than_days=0) == []
    assert folder.exists()


def test_a_half_built_one_goes_even_if_current(settings: Settings) -> None:
    folder = current(settings, finished=False)
    (removed,) = collect(settings, dry_run=False, older_than_days=7)
    assert (removed.path, removed.reason) == (folder, "half-built")
    assert not folder.exists()


def test_one_that_is_being_built_stays(settings: Settings) -> None:
    folder = current(settings, finished=False)
    with locked(lock_file(folder)):
        assert collect(settings, dry_run=False, older_than_days=0) == []
    assert folder.exists()


def test_one_that_a_process_runs_from_stays(settings: Settings) -> None:
    folder = old(settings, idle_days=30)
    python = folder / "bin" / "python"
    python.symlink_to(sys.executable)
    user = subprocess.Popen([python, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert collect(settings, dry_run=False, older_than_days=0) == []
        assert folder.exists()
    finally:
        user.communicate(b"\n")
    assert collect(settings, dry_run=False, older_than_days=0)


@pytest.mark.parametrize("name", ["mine", "serve-cpu", "serve-cpu-0123456789abcdeg", ".locks"])
def test_folders_that_are_not_ours_stay(settings: Settings, name: str) -> None:
    folder = place(settings.home / "environments" / name, finished=False)
    assert collect(settings, dry_run=False, older_than_days=0) == []
    assert folder.exists()
