"""Health check of a built environment."""

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
    """Return a description of what is wrong with an environment; None if it is usable. Fast.

    Code that another user may have changed is not executed.
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
        return f"its packages differ from the lock: {', '.join(wrong[:5])}"
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
    """Return each package whose installed version differs from the lock.

    Local version labels ("+cpu") are ignored: they distinguish builds of one version.
    """
    return [
        f"{name} {version} (installed: {versions.get(name, 'none')})"
        for name, version in definition.pins.items()
        if versions.get(name) != version and versions.get(name, "").split("+")[0] != version
    ]


def torch_fault(definition: EnvironmentDefinition, python: Path) -> str | None:
    """Return a fault if torch in a CUDA environment is a CPU build; it would silently use the CPU.

    Raises:
        EnvironmentBuildError: the interpreter does not start.
    """
    if not definition.needs_cuda_torch or torch_cuda(python) is not None:
        return None
    return "its torch is not built for CUDA (torch.version.cuda is None)"
