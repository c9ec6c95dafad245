"""What keeps environments from being built, told before the first is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest
from small_checkpoint import checkpoint_files, write_files

from pipeline.environments.definition import RUN_ENVIRONMENTS, define
from pipeline.environments.settings import EnvironmentOverride, Settings
from pipeline.preflight.build_faults import bytes_to_build, find_build_faults, find_library_fault
from recipes.accelerator import Accelerator
from recipes.engines import find_engine
from recipes.engines.vllm import Vllm

Usage = namedtuple("Usage", "total used free")
ALL = sum(define(name, Accelerator.CPU).disk_bytes for name in RUN_ENVIRONMENTS)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home", store=tmp_path / "store")


def faults(settings: Settings, *names: str, at_once: int = 0) -> list[str]:
    found = find_build_faults(names or RUN_ENVIRONMENTS, Accelerator.CPU, settings, at_once=at_once)
    return [str(fault) for fault in found]


@pytest.mark.parametrize(
    ("free", "at_once", "is_refused"),
    [(ALL, 0, False), (ALL - 1, 0, True), (ALL + 5, 5, False), (ALL + 5, 6, True)],
)
def test_the_disk_takes_all_that_are_missing_together(
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    free: int,
    at_once: int,
    is_refused: bool,
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(0, 0, free))
    told = faults(settings, at_once=at_once)
    assert bool(told) == is_refused
    assert all("serve-cpu" in fault and "PREPARE_HOME" in fault for fault in told)
    assert bytes_to_build(RUN_ENVIRONMENTS, Accelerator.CPU, settings) == ALL


def test_a_sites_interpreters_take_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(0, 0, 0))
    own = {name: EnvironmentOverride(python=Path(sys.executable)) for name in RUN_ENVIRONMENTS}
    settings = Settings(home=tmp_path / "home", store=tmp_path / "store", environments=own)
    assert faults(settings) == []


def test_a_place_that_others_may_write_to(settings: Settings) -> None:
    settings.home.mkdir()
    settings.home.chmod(0o775)
    (told,) = faults(settings)
    assert "is not trusted" in told
    assert "chmod -R go-w" in told


def test_a_place_that_takes_no_file(settings: Settings) -> None:
    settings.home.write_text("in the way")
    (told,) = faults(settings)
    assert "cannot be written to" in told
    assert "PREPARE_HOME" in told


def test_a_library_of_the_engines_build_for_cpus(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    vllm = find_engine("vllm")
    assert find_library_fault(vllm, Accelerator.CPU, settings) is None
    monkeypatch.setattr(Vllm, "cpu_libraries", {"libno-such.so.1": "libno-such1"})
    fault = find_library_fault(vllm, Accelerator.CPU, settings)
    assert fault is not None
    assert "libno-such1" in (fault.hint or "")
    assert find_library_fault(vllm, Accelerator.CUDA, settings) is None
    own = {"serve": EnvironmentOverride(python=Path(sys.executable))}
    sites = Settings(home=settings.home, store=settings.store, environments=own)
    assert find_library_fault(vllm, Accelerator.CPU, sites) is None


def test_plan_and_build_refuse_it_as_doctor_does(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(0o775)
    write_files(tmp_path / "model", checkpoint_files())
    environment = {**os.environ, "PREPARE_HOME": str(home), "HF_HUB_OFFLINE": "1"}
    plan = ["plan", str(tmp_path / "model"), "--profile", "cpu"]
    for command, code in ((plan, 2), (["doctor", "--build"], 2), (["doctor"], 1)):
        done = subprocess.run(
            [sys.executable, "-P", "-m", "prepare", *command],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stderr
        assert "is not trusted" in done.stdout + done.stderr
