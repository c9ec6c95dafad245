"""`prepare doctor` on this machine, and on ones that lack something."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.environments.definition import define, detect_accelerator, environment_folder
from pipeline.environments.environment import EnvironmentState, status
from pipeline.environments.settings import EnvironmentOverride, Settings
from pipeline.preflight import build_faults, doctor
from pipeline.preflight.doctor import (
    DoctorCheck,
    Severity,
    diagnose,
    processor_finding,
)
from prepare.hardware import CPU_FEATURES_VARIABLE
from recipes.accelerator import Accelerator
from recipes.catalog import load_profile
from recipes.engines.vllm import Vllm


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home", store=tmp_path / "store")


def about(subject: str, findings: list[DoctorCheck]) -> DoctorCheck:
    (found,) = [item for item in findings if item.subject == subject]
    return found


def driver(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_a_home_that_nobody_writes_to_is_enough_where_all_is_built(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home").write_text("nothing can be made in a file")
    found = status("serve", Accelerator.CPU, settings)
    built = replace(found, state=EnvironmentState.READY)
    monkeypatch.setattr(build_faults, "defined_status", lambda *_: built)
    home = about("home", diagnose(settings))
    assert (home.severity, home.hint) == (Severity.OK, "")


def test_a_user_without_a_folder(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a user whom OpenShift makes up."""
    assert not [item for item in diagnose(settings) if item.subject == "user's folder"]
    (tmp_path / "nothing").touch()
    monkeypatch.setenv("HOME", str(tmp_path / "nothing"))
    assert about("user's folder", diagnose(settings)).severity is Severity.PROBLEM


def test_a_cpu_without_the_library_that_vllm_is_linked_with(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    if detect_accelerator() is not Accelerator.CPU:
        pytest.skip("of a CPU's engine")
    assert not [item for item in diagnose(settings) if item.subject == "libraries"]
    monkeypatch.setattr(Vllm, "cpu_libraries", {"libno-such.so.1": "libno-such1"})
    told = about("libraries", diagnose(settings))
    assert told.severity is Severity.PROBLEM
    assert "libno-such1" in told.hint


def test_whatever_is_wrong_has_a_hint(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file is in the way")
    findings = diagnose(settings)
    assert about("home", findings).severity is Severity.PROBLEM
    for item in findings:
        assert (item.severity is Severity.OK) == (item.hint == "")


def test_an_environment_that_is_not_built_is_not_called_missing(settings: Settings) -> None:
    definition = define("serve", detect_accelerator())
    found = about(f"environment {definition.key}", diagnose(settings))
    assert (found.severity, found.message) == (Severity.OK, doctor.NOT_BUILT)


def test_a_half_built_environment_is_a_warning(settings: Settings) -> None:
    definition = define("serve", detect_accelerator())
    environment_folder(settings.home, definition).mkdir(parents=True)
    found = about(f"environment {definition.key}", diagnose(settings))
    assert found.severity is Severity.WARNING
    assert found.message == "its build did not finish"
    assert found.hint.endswith("prepare doctor --build serve")


def test_an_interpreter_of_the_sites_that_is_gone_is_a_problem(tmp_path: Path) -> None:
    override = EnvironmentOverride(python=tmp_path / "gone")
    settings = Settings(
        home=tmp_path / "home", store=tmp_path / "store", environments={"serve": override}
    )
    found = about("environment serve", diagnose(settings))
    assert found.severity is Severity.PROBLEM
    assert "does not respond" in found.message


@pytest.mark.parametrize(
    ("features", "severity", "message"),
    [
        (("avx2", "avx512f"), Severity.OK, "avx512f"),
        (("avx2",), Severity.OK, "avx2"),
        ((), Severity.PROBLEM, "AVX2"),
    ],
)
def test_processors(features: tuple[str, ...], severity: Severity, message: str) -> None:
    found = processor_finding(features)
    assert found.severity is severity
    assert message in found.message


class TestProfiles:
    """What this machine cannot serve as a profile says, or serves in another way."""

    def test_a_cpu_without_avx512(
        self, settings: Settings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(CPU_FEATURES_VARIABLE, "avx2")
        findings = diagnose(settings, load_profile("cpu"))
        assert "float32" in about("profile cpu, float32", findings).message
        assert "KV cache" in about("profile cpu, kv-cache-not-fp8", findings).message


GPU = """case "$1" in
-L) echo "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)";;
*) echo "580.10, 81559 MiB, 9.0";;
esac"""


class TestDriver:
    """Machines with an NVIDIA driver, as told by its program."""

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

    @pytest.mark.parametrize(
        ("script", "severity", "told"),
        [
            ("echo /no/headers", Severity.WARNING, "/no/headers/Python.h"),
            ("echo no libpython >&2; exit 127", Severity.PROBLEM, "no libpython"),
        ],
    )
    def test_headers_are_those_of_the_python_that_serves(
        self,
        settings: Settings,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        script: str,
        severity: Severity,
        told: str,
    ) -> None:
        driver(tmp_path, GPU, monkeypatch)
        python = tmp_path / "site-python"
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o755)
        serving = {"serve": EnvironmentOverride(python=python)}
        found = about("Python.h", diagnose(settings.model_copy(update={"environments": serving})))
        assert found.severity is severity
        assert told in found.message

    def test_too_old_a_driver_is_a_problem_by_number(
        self, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        driver(tmp_path, GPU.replace("580.10", "535.183.06"), monkeypatch)
        found = about("gpu", diagnose(settings))
        assert found.severity is Severity.PROBLEM
        assert "535.183.06" in found.message
        assert "580" in found.hint


@pytest.mark.parametrize(("busy", "is_told"), [("GPU-1", True), ("GPU-7", False)])
def test_gpus_that_are_busy(
    settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    busy: str,
    is_told: bool,
) -> None:
    name = "NVIDIA H100 80GB HBM3"
    listed = "\n".join(f"GPU {number}: {name} (UUID: GPU-{number})" for number in (0, 1))
    facts = "\n".join(["580.10, 81559 MiB, 9.0"] * 2)
    script = f"case \"$*\" in\n-L) echo '{listed}';;\n*compute-apps*) echo {busy};;\n"
    driver(tmp_path, f"{script}*driver_version*) echo '{facts}';;\n*) exit 2;;\nesac", monkeypatch)
    told = [item for item in diagnose(settings) if item.subject == "GPUs"]
    assert [item.severity for item in told] == [Severity.WARNING] * is_told
    assert all(f"1 ({name})" in item.message for item in told)
