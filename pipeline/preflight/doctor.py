"""Checks of what environments need, with hints."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.filesize import decimal
from uv import find_uv_bin

from eval_gates.sandbox import SandboxError, check_sandbox
from pipeline.environments.definition import (
    LOCKED_PYTHON,
    RUN_ENVIRONMENTS,
    define,
    detect_accelerator,
    environment_names,
    environments_folder,
)
from pipeline.environments.environment import EnvironmentState, find_distrust, status
from pipeline.environments.gpu_host import DoctorCheck, Severity, check_compilers, check_driver
from pipeline.environments.installer import find_locked_python
from pipeline.plan.serving_profile import fit_profile, load_named_profile
from pipeline.preflight.build_faults import (
    bytes_to_build,
    find_build_faults,
    find_library_fault,
    find_write_fault,
)
from pipeline.preflight.machine import (
    existing_folder,
    find_gpu_fault,
    find_missing_gpus,
    machine_of,
)
from prepare.errors import UsageError
from prepare.gpus import VisibleGpu, busy_gpus
from prepare.hardware import cpu_features, this_node
from recipes.accelerator import Accelerator
from recipes.catalog import load_recipe, recipe_names
from recipes.engines import DEFAULT, find_engine

if TYPE_CHECKING:
    from pipeline.environments.settings import Settings
    from recipes.schema import ServingProfile


NOT_BUILT = "not built yet: the first run that needs it builds it"
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108
SERVER_SHARES_BYTES = 160 * 2**20  # vLLM 0.32's queue between its processes


def diagnose(settings: Settings, profile: ServingProfile | None = None) -> list[DoctorCheck]:
    """Return all findings, the good ones included.

    Without a profile, the machine's default one is checked.
    """
    accelerator = detect_accelerator()
    checks: list[Callable[[], Iterator[DoctorCheck]]] = [
        _check_programs,
        lambda: _check_folders(settings, accelerator),
        lambda: _check_environments(settings, accelerator),
        check_driver,
        _check_sandbox,
    ]
    serving = settings.environments.get("serve")
    site_interpreter = serving.python if serving is not None else None
    if accelerator is Accelerator.CPU:
        checks.append(lambda: _check_cpu(settings))
    else:
        checks.append(lambda: check_compilers(site_interpreter))
    checks.append(lambda: profile_findings(profile))
    return [finding for check in checks for finding in check()]


def _ok(subject: str, message: str) -> DoctorCheck:
    return DoctorCheck(subject, Severity.OK, message)


def _problem(subject: str, message: str, hint: str | None) -> DoctorCheck:
    return DoctorCheck(subject, Severity.PROBLEM, message, hint or "")


def _warning(subject: str, message: str, hint: str | None) -> DoctorCheck:
    return DoctorCheck(subject, Severity.WARNING, message, hint or "")


def processor_finding(features: Collection[str]) -> DoctorCheck:
    """Report whether an x86 CPU can serve models."""
    if lack := find_engine(DEFAULT).lacks(features):
        return _problem("processor", lack, "run on a newer machine, or on one with a GPU")
    slower = "" if "avx512f" in features else "; serving is faster with AVX-512"
    return _ok("processor", ", ".join(features) + slower)


def profile_findings(profile: ServingProfile | None) -> Iterator[DoctorCheck]:
    """Report whether this machine can serve the profile."""
    try:
        node = this_node()
        fitted = fit_profile(profile or load_named_profile("auto", node), node)
    except UsageError as error:
        yield _problem("profile", error.message, error.hint)
        return
    machine = machine_of(node, Path.cwd(), with_gpu=fitted.accelerator == "cuda")
    subject = f"profile {fitted.name}"
    if missing := find_missing_gpus(fitted, machine):
        yield _problem(subject, missing.message, missing.hint)
        return
    yield _ok(subject, "can be served here")
    if fitted.accelerator == "cuda":
        yield from _check_busy(node.gpus)
    for name, override in fitted.in_effect.items():
        yield _ok(f"{subject}, {name}", override.reason)
    for name in recipe_names():
        if fault := find_gpu_fault(load_recipe(name), fitted, machine):
            yield _warning(f"{subject}, recipe {name}", fault.message, fault.hint)


def _check_busy(gpus: Sequence[VisibleGpu]) -> Iterator[DoctorCheck]:
    """Report GPUs with outside processes."""
    computing = busy_gpus()
    busy = [f"{number} ({gpu.name})" for number, gpu in enumerate(gpus) if gpu.uuid in computing]
    if busy:
        yield _warning(
            "GPUs",
            f"another process computes on GPU {', '.join(busy)}",
            "end it, or choose others with CUDA_VISIBLE_DEVICES",
        )


def _check_programs() -> Iterator[DoctorCheck]:
    version = platform.python_version()
    locked = ".".join(map(str, LOCKED_PYTHON))
    if sys.version_info[:2] == LOCKED_PYTHON:
        yield _ok("python", version)
    elif (interpreter := find_locked_python()) is not None:
        yield _ok("python", f"{version}; environments are made with Python {locked}, {interpreter}")
    else:
        yield _warning(
            "python",
            f"{version}; environments are made with Python {locked}, which uv fetches from GitHub",
            f"without a network install Python {locked}; behind a mirror set "
            "UV_PYTHON_INSTALL_MIRROR",
        )
    try:
        command = [find_uv_bin(), "--version"]
        said = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError) as error:  # a missing program's, too
        yield _problem("uv", f"does not start: {error}", "reinstall uv")
    else:
        yield _ok("uv", said.stdout.strip())


def _check_sandbox() -> Iterator[DoctorCheck]:
    """Check the sandbox, and shared memory (containers: 64 MB)."""
    free = shutil.disk_usage(SHARED_MEMORY).free if SHARED_MEMORY.is_dir() else 0
    if free < SERVER_SHARES_BYTES:
        yield _problem(
            "shared memory",
            f"{free / 2**20:.0f} MiB are free in {SHARED_MEMORY}; a model server asks for "
            f"{SERVER_SHARES_BYTES / 2**20:.0f} MiB",
            "in a container, --shm-size 1g, or in Kubernetes an emptyDir of medium Memory there",
        )
    try:
        yield _ok("sandbox", str(check_sandbox()))
    except SandboxError as error:
        yield _problem("sandbox", error.message, error.hint)


def _check_folders(settings: Settings, accelerator: Accelerator) -> Iterator[DoctorCheck]:
    cache = Path.home() / ".cache"
    faults = list(find_build_faults(RUN_ENVIRONMENTS, accelerator, settings))
    for fault in faults:
        yield _problem("home", fault.message, fault.hint)
    if not faults:
        is_read_only = find_write_fault(environments_folder(settings.home))
        built = ", read-only; what every run uses is built" if is_read_only else ""
        yield _ok("home", f"{settings.home}{built}")
        free = shutil.disk_usage(existing_folder(settings.home)).free
        needed = bytes_to_build(RUN_ENVIRONMENTS, accelerator, settings)
        yield _ok(
            "disk", f"{decimal(free)} free, environments still to build need {decimal(needed)}"
        )
    if unwritable := find_write_fault(cache):
        reason = f"{unwritable}; engines and downloads keep files in {cache}"
        yield _problem("user's folder", reason, "set HOME to a folder that you may write to")


def _check_environments(settings: Settings, accelerator: Accelerator) -> Iterator[DoctorCheck]:
    for name in environment_names():
        try:
            environment = status(name, accelerator, settings)
        except UsageError as error:  # a package's declaration is malformed
            yield _warning(f"environment {name}", f"{error.message} ({error.where})", error.hint)
            continue
        subject = f"environment {environment.key}"
        if environment.state is not EnvironmentState.BROKEN:
            is_made = environment.state is not EnvironmentState.MISSING
            yield _ok(subject, str(environment.state) if is_made else NOT_BUILT)
        elif name in settings.environments:
            yield _problem(
                subject, environment.reason, "correct `environments` in the settings file"
            )
        else:
            distrust = find_distrust(define(name, accelerator), settings.home)
            build = f"build it now: prepare doctor --build {name}"
            yield _warning(subject, environment.reason, distrust.hint if distrust else build)


def _check_cpu(settings: Settings) -> Iterator[DoctorCheck]:
    if platform.machine() == "x86_64":
        try:
            yield processor_finding(cpu_features())
        except UsageError as error:
            yield _problem("processor", error.message, error.hint)
    else:
        yield _warning(
            "processor",
            f"{platform.machine()}; the locks were resolved for x86-64",
            "if a build fails, name interpreters of your own in the settings file",
        )
    if (fault := find_library_fault(find_engine(DEFAULT), Accelerator.CPU, settings)) is not None:
        yield _problem("libraries", fault.message, fault.hint)
