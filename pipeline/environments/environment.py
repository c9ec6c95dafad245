"""Managed Python environments: identify, ensure and use one.

An environment is built with uv on first use from a lock of this repository, in a folder under
`home` named after its identity. It is checked on every use and rebuilt if damaged. A site's
interpreter (``environments: {serve: {python: ...}}``) can replace any of them.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pipeline.core.errors import EnvironmentBuildError
from pipeline.core.events import Progress
from pipeline.environments.build import build
from pipeline.environments.cuda_home import make_cuda_home
from pipeline.environments.definition import (
    Accelerator,
    EnvironmentDefinition,
    EnvironmentName,
    define,
    detect_accelerator,
    environment_name,
)
from pipeline.environments.external import external_identity, require_modules
from pipeline.environments.folders import (
    check_trusted,
    environment_folder,
    hold,
    is_buildable,
)
from pipeline.environments.health import find_fault
from pipeline.environments.processes_in_use import processes_using
from pipeline.environments.record import (
    RECORD_NAME,
    EnvironmentRecord,
    interpreter_path,
    read_record,
)
from pipeline.environments.settings import Settings
from pipeline.environments.status import EnvironmentState, EnvironmentStatus, status

__all__ = [
    "Accelerator",
    "Environment",
    "EnvironmentName",
    "EnvironmentState",
    "EnvironmentStatus",
    "check_planned_environment",
    "detect_accelerator",
    "ensure",
    "identity",
    "interpreters",
    "status",
]


@dataclass(frozen=True)
class Environment:
    """A Python environment that is ready for use."""

    name: EnvironmentName  # which environment it is
    accelerator: Accelerator  # requested accelerator
    identity: str  # digest of its definition; part of stage keys
    python: Path  # its interpreter
    versions: dict[str, str]  # version by normalized name of every installed package
    managed: bool  # False for a site's interpreter


def identity(name: str, accelerator: Accelerator, settings: Settings) -> str:
    """Return the digest that identifies an environment, without building it."""
    override = settings.environments.get(environment_name(name))
    return external_identity(override)[0] if override else define(name, accelerator).identity


def check_planned_environment(
    name: str, accelerator: Accelerator, settings: Settings, planned: str
) -> None:
    """Check that this node has the environment that a result's key and evidence name.

    Raises:
        EnvironmentBuildError: this node's settings select another environment.
    """
    if planned not in ("", identity(name, accelerator, settings)):
        raise EnvironmentBuildError(
            f"the environment '{name}' of this node differs from the planned one",
            where=f"node {platform.node()}",
            hint="use the same `environments` in the settings files of every node and of the "
            "driver; --settings selects the file",
        )


def ensure(
    name: str, accelerator: Accelerator, settings: Settings, progress: Progress
) -> Environment:
    """Return the environment; build it on first use, rebuild it if damaged.

    Concurrent calls are safe: one process builds, the others wait.
    """
    definition = define(name, accelerator)
    override = settings.environments.get(definition.name)
    if override is None:
        return ensure_defined(definition, settings.home, progress)
    digest, versions = external_identity(override)
    require_modules(definition, override)
    return Environment(
        definition.name, accelerator, digest, override.python, versions, managed=False
    )


def interpreters(
    accelerator: Accelerator, settings: Settings, progress: Progress
) -> Callable[[str], Path]:
    """Return a function from name to interpreter, which ensures each environment once."""

    @cache
    def python_of_environment(name: str) -> Path:
        return ensure(name, accelerator, settings, progress).python

    return python_of_environment


def ensure_defined(
    definition: EnvironmentDefinition, home: Path, progress: Progress
) -> Environment:
    """Ensure the environment of a definition; see :func:`ensure`."""
    folder = environment_folder(home, definition)
    check_trusted(folder, definition.key)
    with hold(folder, definition.key, progress):
        record = _usable_record(definition, folder, progress)
        if record is None:
            record = build(definition, folder, progress)
        if is_buildable(folder):
            make_cuda_home(folder)
        # Time of last use, for `prepare gc`.
        with suppress(OSError):
            os.utime(folder / RECORD_NAME)
    return Environment(
        name=definition.name,
        accelerator=definition.accelerator,
        identity=record.identity,
        python=interpreter_path(folder),
        versions=record.versions,
        managed=True,
    )


def _usable_record(
    definition: EnvironmentDefinition, folder: Path, progress: Progress
) -> EnvironmentRecord | None:
    """Return the record of a usable environment; None if it must be built.

    Raises:
        EnvironmentBuildError: it is damaged, and in use or not writable.
    """
    if not folder.exists():
        progress.note(f"building the {definition.key} environment (once)")
        return None
    record = read_record(folder)
    fault = find_fault(definition, folder, record)
    if fault is None:
        return record
    if not is_buildable(folder):
        raise EnvironmentBuildError(
            f"the {definition.key} environment is damaged ({fault}) and not writable",
            where=str(folder),
            hint="ask its owner to rebuild it (`prepare doctor --build`, or the image), or set "
            "PREPARE_HOME to a writable folder",
        )
    users = processes_using(folder)
    if users:
        raise EnvironmentBuildError(
            f"the {definition.key} environment is damaged ({fault}) and in use",
            where=str(folder),
            hint=f"end the processes that use it, then try again: {', '.join(map(str, users))}",
        )
    progress.note(f"rebuilding the {definition.key} environment: {fault}")
    return None
