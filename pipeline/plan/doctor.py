"""Checks of what environments need to be built and used, with hints."""

from __future__ import annotations

import ctypes
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from eval_gates.sandbox import SandboxError, check_sandbox
from pipeline.core.cpu_features import cpu_features
from pipeline.core.errors import PrepareError, UsageError
from pipeline.core.gpus import VisibleGpu, busy_gpus
from pipeline.core.hardware import this_node
from pipeline.environments.definition import (
    LOCKED_PYTHON,
    RUN_ENVIRONMENTS,
    Accelerator,
    EnvironmentName,
    define,
    detect_accelerator,
    environments_folder,
)
from pipeline.environments.environment import EnvironmentState, status
from pipeline.environments.gpu_host import DoctorCheck, Severity, check_compilers, check_driver
from pipeline.environments.installer import (
    find_uv,
    has_cpu_torch,
    installer_variables,
)
from pipeline.plan.machine import find_gpu_fault, find_missing_gpus, machine_of
from pipeline.plan.serving_profile import fit_profile, load_named_profile
from recipes.catalog import load_recipe, recipe_names
from recipes.engines import DEFAULT, find_engine

if TYPE_CHECKING:
    from pipeline.environments.settings import Settings
    from recipes.schema import ServingProfile


NUMA_LIBRARY = "libnuma.so.1"
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108
SERVER_SHARES_BYTES = 160 * 2**20  # vLLM 0.32's queue between its processes


def diagnose(settings: Settings, profile: ServingProfile | None = None) -> list[DoctorCheck]:
    """Return all findings, the good ones included, in reading order.

    Without a profile, the default profile of this machine is checked.
    """
    accelerator = detect_accelerator()
    checks: list[Callable[[], Iterator[DoctorCheck]]] = [
        _check_python,
        _check_uv,
        lambda: _check_home(settings, accelerator),
        _check_own_folder,
        lambda: _check_disk(settings, accelerator),
        lambda: _check_environments(settings, accelerator),
        check_driver,
        _check_shared_memory,
        _check_sandbox,
    ]
    if accelerator is Accelerator.CPU:
        checks += [_check_processor, _check_numa, _check_torch_source]
    else:
        checks.append(check_compilers)
    checks.append(lambda: profile_findings(profile))
    return [finding for check in checks for finding in check()]


def processor_finding(features: Collection[str]) -> DoctorCheck:
    """Report whether an x86 CPU with these features can serve models."""
    if lack := find_engine(DEFAULT).lacks(features):
        hint = "run on a newer machine, or on one with a GPU"
        return DoctorCheck("processor", Severity.PROBLEM, lack, hint)
    slower = "" if "avx512f" in features else "; serving is faster with AVX-512"
    return DoctorCheck("processor", Severity.OK, ", ".join(features) + slower)


def profile_findings(profile: ServingProfile | None) -> Iterator[DoctorCheck]:
    """Report whether this machine can serve the profile, its overrides and unsuitable recipes.

    None stands for the default profile of this machine.
    """
    try:
        node = this_node()
        fitted = fit_profile(profile or load_named_profile("auto", node), node)
    except UsageError as error:
        yield DoctorCheck("profile", Severity.PROBLEM, error.message, error.hint)
        return
    machine = machine_of(node, Path.cwd(), with_gpu=fitted.accelerator == "cuda")
    subject = f"profile {fitted.name}"
    if missing := find_missing_gpus(fitted, machine):
        yield DoctorCheck(subject, Severity.PROBLEM, missing.message, missing.hint)
        return
    yield DoctorCheck(subject, Severity.OK, "can be served here")
    if fitted.accelerator == "cuda":
        yield from _check_idle_and_busy(node.gpus)
    for name, override in fitted.in_effect.items():
        yield DoctorCheck(f"{subject}, {name}", Severity.OK, override.reason)
    for name in recipe_names():
        recipe = load_recipe(name)
        if fault := find_gpu_fault(recipe, fitted, machine):
            yield DoctorCheck(
                f"{subject}, recipe {name}", Severity.WARNING, fault.message, fault.hint
            )


def _check_idle_and_busy(gpus: Sequence[VisibleGpu]) -> Iterator[DoctorCheck]:
    """Report GPUs that no run uses, and those where another process computes."""
    unused = [gpu.name for gpu in gpus if gpu.name != gpus[0].name]
    if unused:
        yield DoctorCheck(
            "GPUs",
            Severity.WARNING,
            f"{', '.join(unused)} stays unused: all GPUs of a run are of one kind, {gpus[0].name}",
            "choose others with CUDA_VISIBLE_DEVICES",
        )
    computing = busy_gpus()
    busy = [f"{number} ({gpu.name})" for number, gpu in enumerate(gpus) if gpu.uuid in computing]
    if busy:
        yield DoctorCheck(
            "GPUs",
            Severity.WARNING,
            f"another process computes on GPU {', '.join(busy)}",
            "end it, or choose others with CUDA_VISIBLE_DEVICES",
        )


def _check_python() -> Iterator[DoctorCheck]:
    version = platform.python_version()
    if sys.version_info[:2] == LOCKED_PYTHON:
        yield DoctorCheck("python", Severity.OK, version)
        return
    locked = ".".join(map(str, LOCKED_PYTHON))
    yield DoctorCheck(
        "python",
        Severity.WARNING,
        f"{version}; the locks were resolved for {locked}, a package may have no wheel for yours",
        f"if a build fails, run prepare with Python {locked}",
    )


def _check_sandbox() -> Iterator[DoctorCheck]:
    try:
        way = check_sandbox()
    except SandboxError as error:
        yield DoctorCheck("sandbox", Severity.PROBLEM, error.message, error.hint)
    else:
        yield DoctorCheck("sandbox", Severity.OK, str(way))


def _check_shared_memory() -> Iterator[DoctorCheck]:
    """Check the shared memory of server processes; containers have 64 MB by default."""
    free = shutil.disk_usage(SHARED_MEMORY).free if SHARED_MEMORY.is_dir() else 0
    if free < SERVER_SHARES_BYTES:
        yield DoctorCheck(
            "shared memory",
            Severity.PROBLEM,
            f"{free / 2**20:.0f} MiB are free in {SHARED_MEMORY}; a model server asks for "
            f"{SERVER_SHARES_BYTES / 2**20:.0f} MiB",
            "in a container, --shm-size 1g, or in Kubernetes an emptyDir of medium Memory there",
        )


def _check_uv() -> Iterator[DoctorCheck]:
    try:
        uv = find_uv()
        said = subprocess.run(
            [str(uv), "--version"], capture_output=True, text=True, timeout=30, check=True
        )
    except PrepareError as error:
        yield DoctorCheck("uv", Severity.PROBLEM, error.message, error.hint)
    except (OSError, subprocess.SubprocessError) as error:
        yield DoctorCheck("uv", Severity.PROBLEM, f"does not start: {error}", "reinstall uv")
    else:
        yield DoctorCheck("uv", Severity.OK, said.stdout.strip())


def _check_home(settings: Settings, accelerator: Accelerator) -> Iterator[DoctorCheck]:
    folder = _nearest_existing(environments_folder(settings.home))
    try:
        # A write is tried, because root passes permission checks on a read-only mount.
        with tempfile.TemporaryFile(dir=folder):
            yield DoctorCheck("home", Severity.OK, str(settings.home))
    except OSError as error:
        usable = {EnvironmentState.READY, EnvironmentState.EXTERNAL}
        if all(status(name, accelerator, settings).state in usable for name in RUN_ENVIRONMENTS):
            read_only = f"{settings.home}, read-only; what every run uses is built"
            yield DoctorCheck("home", Severity.OK, read_only)
            return
        yield DoctorCheck(
            "home",
            Severity.PROBLEM,
            f"{folder} cannot be written to: {error.strerror}",
            "set PREPARE_HOME to a folder that you may write to",
        )


def _check_own_folder() -> Iterator[DoctorCheck]:
    """Check that engines can write to the user's cache directory."""
    folder = Path.home() / ".cache"
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return
    yield DoctorCheck(
        "user's folder",
        Severity.PROBLEM,
        f"{folder} cannot be written to, where engines and downloads keep files",
        "set HOME to a folder that you may write to",
    )


def _check_disk(settings: Settings, accelerator: Accelerator) -> Iterator[DoctorCheck]:
    free = shutil.disk_usage(_nearest_existing(settings.home)).free
    needed = sum(
        define(name, accelerator).disk_bytes
        for name in RUN_ENVIRONMENTS
        if status(name, accelerator, settings).state is EnvironmentState.MISSING
    )
    message = f"{free / 1e9:.0f} GB free, environments still to build need {needed / 1e9:.0f} GB"
    if free < needed:
        hint = "free some (`prepare gc` may help), or set PREPARE_HOME to a larger disk"
        yield DoctorCheck("disk", Severity.PROBLEM, message, hint)
    else:
        yield DoctorCheck("disk", Severity.OK, message)


def _check_environments(settings: Settings, accelerator: Accelerator) -> Iterator[DoctorCheck]:
    for name in EnvironmentName:
        found = status(name, accelerator, settings)
        subject = f"environment {found.key}"
        if found.state is not EnvironmentState.BROKEN:
            yield DoctorCheck(subject, Severity.OK, str(found.state))
        elif name in settings.environments:
            hint = "correct `environments` in the settings file"
            yield DoctorCheck(subject, Severity.PROBLEM, found.reason, hint)
        else:
            hint = f"build it now: prepare doctor --build {name}"
            yield DoctorCheck(subject, Severity.WARNING, found.reason, hint)


def _check_processor() -> Iterator[DoctorCheck]:
    if platform.machine() == "x86_64":
        try:
            yield processor_finding(cpu_features())
        except UsageError as error:
            yield DoctorCheck("processor", Severity.PROBLEM, error.message, error.hint)
    else:
        yield DoctorCheck(
            "processor",
            Severity.WARNING,
            f"{platform.machine()}; the locks were resolved for x86-64",
            "if a build fails, name interpreters of your own in the settings file",
        )


def _check_numa() -> Iterator[DoctorCheck]:
    """Load the library that vLLM on CPUs is linked with; without it vLLM fails after its start."""
    try:
        ctypes.CDLL(NUMA_LIBRARY)
    except OSError as error:
        hint = "install it, such as Debian's libnuma1"
        yield DoctorCheck("libnuma", Severity.PROBLEM, f"vLLM needs it on a CPU: {error}", hint)


def _check_torch_source() -> Iterator[DoctorCheck]:
    find_links = installer_variables().get("UV_FIND_LINKS", "")
    if has_cpu_torch(find_links):
        yield DoctorCheck("torch for CPU", Severity.OK, f"from find-links: {find_links}")
    else:
        yield DoctorCheck(
            "torch for CPU", Severity.OK, "not in find-links; from PyTorch's CPU index"
        )


def _nearest_existing(path: Path) -> Path:
    return next(folder for folder in (path, *path.parents) if folder.exists())
