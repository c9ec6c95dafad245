"""Tells whether a built environment is still what was built."""

from __future__ import annotations

from pathlib import Path

from pipeline.environments.definition import Definition
from pipeline.environments.interpreter import missing_modules
from pipeline.environments.record import EnvironmentRecord, installed_versions, python_of
from pipeline.errors import EnvironmentBuildError


def find_fault(
    definition: Definition, folder: Path, record: EnvironmentRecord | None
) -> str | None:
    """What is wrong with a built environment, in words; None when nothing is. Quick."""
    if record is None or record.identity != definition.identity:
        return "its build did not finish"
    installed = installed_versions(folder)
    if installed != record.versions:
        changed = sorted(dict(installed.items() ^ record.versions.items()))
        return f"its packages changed since it was built: {', '.join(changed[:5])}"
    try:
        missing = missing_modules(python_of(folder), definition.modules)
    except EnvironmentBuildError as error:
        return error.what
    return f"modules are missing: {', '.join(missing)}" if missing else None
