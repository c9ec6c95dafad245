"""Requirements of a host with NVIDIA GPUs."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from pipeline.environments.installer import find_locked_python
from prepare.gpus import MIN_DRIVER_VERSION, is_driver_too_old, query_driver, visible_gpus


class Severity(StrEnum):
    """Importance of a finding."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True)
class DoctorCheck:
    """Result of one check."""

    subject: str  # subject of the check
    severity: Severity  # `problem`: something will fail; `warning`: it may
    message: str  # finding
    hint: str = ""  # remedy; empty if the check passed


def check_header(site_interpreter: Path | None = None) -> DoctorCheck:
    """Check Python.h of the interpreter that serves: a site's own, or that of the environments."""
    python = site_interpreter or find_locked_python()
    if python is None:
        return DoctorCheck("Python.h", Severity.OK, "comes with the Python of uv")
    asked = subprocess.run(
        [str(python), "-I", "-c", "import sysconfig; print(sysconfig.get_path('include'))"],
        capture_output=True,
        text=True,
        check=False,
    )
    if asked.returncode:
        last = (asked.stderr.strip().splitlines() or ["it says nothing"])[-1]
        return DoctorCheck(
            "Python.h",
            Severity.PROBLEM,
            f"{python} does not start: {last}",
            "repair that Python, or name another one in `environments` of the settings file",
        )
    header = Path(asked.stdout.strip(), "Python.h")
    if header.is_file():
        return DoctorCheck("Python.h", Severity.OK, str(header))
    return DoctorCheck(
        "Python.h",
        Severity.WARNING,
        f"not at {header}; vLLM's Triton kernels are compiled against it on a GPU",
        "install Python's headers, such as Debian's python3-dev, or serve with a Python "
        "that has them",
    )


def check_driver() -> Iterator[DoctorCheck]:
    """Check GPUs and their driver."""
    if shutil.which("nvidia-smi") is None:
        yield DoctorCheck("gpu", Severity.OK, "no NVIDIA driver; work runs on the CPU")
        return
    gpus = visible_gpus()
    for gpu in gpus:
        facts = ", ".join(filter(None, (gpu.name, gpu.driver, gpu.memory)))
        if not is_driver_too_old(gpu.driver):
            yield DoctorCheck("gpu", Severity.OK, facts)
            continue
        yield DoctorCheck(
            "gpu",
            Severity.PROBLEM,
            f"{facts}; the CUDA 13 of the environments needs driver {MIN_DRIVER_VERSION} or newer",
            f"install driver {MIN_DRIVER_VERSION} or newer, or name your own interpreters in the "
            "settings file",
        )
    if gpus:
        return
    if query_driver("-L"):
        hidden = f"CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', '')!r}"
        yield DoctorCheck("gpu", Severity.OK, f"{hidden} shows none; work runs on the CPU")
        return
    yield DoctorCheck(
        "gpu",
        Severity.PROBLEM,
        "nvidia-smi fails, so work runs on the CPU",
        "run nvidia-smi and fix the reported problem; in a container, pass the GPUs through",
    )


def check_compilers(site_interpreter: Path | None = None) -> Iterator[DoctorCheck]:
    """Check the compiler and headers that Triton needs; a site's own interpreter has its own."""
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CC", ""), "cc", "gcc"))), None)
    if compiler:
        yield DoctorCheck("C compiler", Severity.OK, compiler)
    else:
        yield DoctorCheck(
            "C compiler",
            Severity.WARNING,
            "none found; vLLM's Triton kernels need one on a GPU",
            "install one, such as Debian's gcc, or set CC",
        )
    yield check_header(site_interpreter)
