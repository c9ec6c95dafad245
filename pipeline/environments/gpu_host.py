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


def find_header() -> Path | None:
    """Return where Python.h of the environments' interpreter is; None if uv fetches it, with it."""
    python = find_locked_python()
    if python is None:
        return None
    asked = subprocess.run(
        [str(python), "-I", "-c", "import sysconfig; print(sysconfig.get_path('include'))"],
        capture_output=True,
        text=True,
        check=True,
    )
    return Path(asked.stdout.strip(), "Python.h")


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


def check_compilers() -> Iterator[DoctorCheck]:
    """Check the compiler and headers that Triton needs."""
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
    header = find_header()
    if header is None or header.is_file():
        yield DoctorCheck("Python.h", Severity.OK, str(header or "comes with the Python of uv"))
    else:
        yield DoctorCheck(
            "Python.h",
            Severity.WARNING,
            f"not at {header}; vLLM's Triton kernels are compiled against it on a GPU",
            "install Python's headers, such as Debian's python3-dev, or run prepare with a Python "
            "that has them",
        )
