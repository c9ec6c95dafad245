"""Tells whether a built environment is still what was built."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pipeline.core.errors import EnvironmentBuildError
from pipeline.environments.definition import EnvironmentDefinition
from pipeline.environments.folders import untrusted_environment_reason
from pipeline.environments.interpreter import missing_modules, torch_cuda
from pipeline.environments.record import EnvironmentRecord, installed_versions, interpreter_path


def find_fault(
    definition: EnvironmentDefinition, folder: Path, record: EnvironmentRecord | None
) -> str | None:
    """What is wrong with a built environment, in words; None when nothing is. Quick.

    Nothing of an environment that another user may have changed is run.
    """
    if why := untrusted_environment_reason(folder):
        return why
    if record is None or record.identity != definition.identity:
        return "its build did not finish"
    installed = installed_versions(folder)
    if installed != record.versions:
        changed = sorted(dict(installed.items() ^ record.versions.items()))
        return f"its packages changed since it was built: {', '.join(changed[:5])}"
    if wrong := differences_from_lock(definition, installed):
        return f"its packages are not those of the lock: {', '.join(wrong[:5])}"
    try:
        missing = missing_modules(interpreter_path(folder), definition.modules)
        if fault := torch_fault(definition, interpreter_path(folder)):
            return fault
    except EnvironmentBuildError as error:
        return error.message
    return f"modules are missing: {', '.join(missing)}" if missing else None


def differences_from_lock(
    definition: EnvironmentDefinition, versions: Mapping[str, str]
) -> list[str]:
    """Return each package whose installed version is not the one in the lock.

    A local version label ("+cpu") distinguishes builds of one version, and the lock leaves it open.
    """
    return [
        f"{name} {version} (installed: {versions.get(name, 'none')})"
        for name, version in definition.pins.items()
        if versions.get(name) != version and versions.get(name, "").split("+")[0] != version
    ]


def torch_fault(definition: EnvironmentDefinition, python: Path) -> str | None:
    """That torch in a CUDA environment was not built for CUDA; it would work on the CPU, silently.

    Raises:
        EnvironmentBuildError: the interpreter does not start.
    """
    if not definition.needs_cuda_torch or torch_cuda(python) is not None:
        return None
    return "its torch is not built for CUDA (torch.version.cuda is None)"
