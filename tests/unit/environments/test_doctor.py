"""`prepare env doctor` on this machine, and on ones that lack something."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.environments import doctor
from pipeline.environments.accelerator import ask_driver, detect_accelerator
from pipeline.environments.definition import Accelerator, define
from pipeline.environments.doctor import Finding, Severity, diagnose, processor_finding
from pipeline.environments.folders import environment_folder
from pipeline.settings import EnvironmentOverride, Settings


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home", store=tmp_path / "store")


def about(subject: str, findings: list[Finding]) -> Finding:
    (found,) = [item for item in findings if item.subject == subject]
    return found


def driver(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put an nvidia-smi on the path, and nothing else but a shell's needs."""
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_everything_is_looked_at_and_nothing_is_built(settings: Settings) -> None:
    findings = diagnose(settings)
    subjects = [item.subject for item in findings]
    assert subjects[:4] == ["python", "uv", "home", "disk"]
    assert any(subject.startswith("environment serve") for subject in subjects)
    assert about("uv", findings).message.startswith("uv ")
    assert not settings.home.exists()


def test_whatever_is_wrong_has_a_cure(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file is in the way")
    findings = diagnose(settings)
    assert about("home", findings).severity is Severity.PROBLEM
    for item in findings:
        assert (item.severity is Severity.OK) == (item.cure == "")


def test_a_half_built_environment_is_a_warning(settings: Settings) -> None:
    definition = define("serve", detect_accelerator())
    environment_folder(settings.home, definition).mkdir(parents=True)
    found = about(f"environment {definition.key}", diagnose(settings))
    assert found.severity is Severity.WARNING
    assert found.message == "its build did not finish"
    assert found.cure.endswith("prepare env build serve")


def test_an_interpreter_of_the_sites_that_is_gone_is_a_problem(tmp_path: Path) -> None:
    override = EnvironmentOverride(python=tmp_path / "gone")
    settings = Settings(
        home=tmp_path / "home", store=tmp_path / "store", environments={"serve": override}
    )
    found = about("environment serve", diagnose(settings))
    assert found.severity is Severity.PROBLEM
    assert "does not answer" in found.message


def test_another_python_than_the_locks(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "LOCKED_PYTHON", (3, 99))
    found = about("python", diagnose(settings))
    assert found.severity is Severity.WARNING
    assert "3.99" in found.cure


@pytest.mark.parametrize(
    ("facts", "severity", "message"),
    [
        ("processor\t: 0\nflags\t\t: fpu avx2 avx512f\n", Severity.OK, "AVX-512"),
        ("processor\t: 0\nflags\t\t: fpu avx2 avx512\n", Severity.OK, "AVX2"),
        ("processor\t: 0\nflags\t\t: fpu avx sse4_2\n", Severity.PROBLEM, "neither"),
        ("", Severity.PROBLEM, "neither"),
    ],
)
def test_processors(facts: str, severity: Severity, message: str) -> None:
    found = processor_finding(facts)
    assert found.severity is severity
    assert message in found.message


GPU = """case "$1" in
-L) echo "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)";;
*) echo "NVIDIA H100 80GB HBM3, 580.10, 81559 MiB";;
esac"""


class TestDriver:
    """Machines with an NVIDIA driver, as told by its program."""

    def test_none(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        assert ask_driver("-L") is None
        assert detect_accelerator() is Accelerator.CPU

    def test_works(
        self, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        driver(tmp_path, GPU, monkeypatch)
        assert detect_accelerator() is Accelerator.CUDA
        findings = diagnose(settings)
        assert about("gpu", findings).message == "NVIDIA H100 80GB HBM3, 580.10, 81559 MiB"
        assert about("environment serve-cuda", findings).severity is Severity.OK
        # No compiler is on this test's path; Triton needs one on a GPU.
        assert about("C compiler", findings).severity is Severity.WARNING
        assert not [item for item in findings if item.subject == "processor"]

    @pytest.mark.parametrize("script", ["echo 'No devices found'; exit 0", "exit 9"])
    def test_without_a_gpu(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
    ) -> None:
        driver(tmp_path, script, monkeypatch)
        assert detect_accelerator() is Accelerator.CPU

    def test_fails(
        self, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        driver(tmp_path, "echo 'Driver/library version mismatch' >&2; exit 18", monkeypatch)
        found = about("gpu", diagnose(settings))
        assert found.severity is Severity.PROBLEM
        assert "nvidia-smi" in found.cure
