"""Managed Python environments: identify, ensure and use one.

Built on first use with uv from a lock of this repository, kept under the settings' home, named
by what went into them, checked on every use and rebuilt when damaged. A site's own
interpreter (``environments: {serve: {python: ...}}``) stands in for any of them.
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
from pipeline.environments.accelerator import detect_accelerator
from pipeline.environments.build import build
from pipeline.environments.definition import (
    Accelerator,
    EnvironmentDefinition,
    EnvironmentName,
    define,
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
    accelerator: Accelerator  # what it was asked for
    identity: str  # digest of all that decides what is in it; part of the keys of stages
    python: Path  # its interpreter
    versions: dict[str, str]  # version by normalized name of every installed package
    managed: bool  # False for an interpreter of the site's own


def identity(name: str, accelerator: Accelerator, settings: Settings) -> str:
    """Digest of all that decides what is in an environment; builds nothing."""
    override = settings.environments.get(environment_name(name))
    return external_identity(override)[0] if override else define(name, accelerator).identity


def check_planned_environment(
    name: str, accelerator: Accelerator, settings: Settings, planned: str
) -> None:
    """See that this node has the environment that a result's key and evidence name.

    Args:
        planned: its identity where the work was laid out; "" where nobody says.

    Raises:
        EnvironmentBuildError: it has another, since its settings differ.
    """
    if planned not in ("", identity(name, accelerator, settings)):
        raise EnvironmentBuildError(
            f"the environment '{name}' of this node is not the one that this was laid out for",
            where=f"node {platform.node()}",
            hint="have `environments` of the settings file alike on every node and where the "
            "command is given; --settings names the file",
        )


def ensure(
    name: str, accelerator: Accelerator, settings: Settings, progress: Progress
) -> Environment:
    """The environment, ready for use: built on first use, rebuilt when damaged.

    Safe to call from several processes at once: one builds, the others wait.
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
    """Gives the interpreter of an environment by its name; looked after, or built, at first use."""

    @cache
    def python_of_environment(name: str) -> Path:
        return ensure(name, accelerator, settings, progress).python

    return python_of_environment


def ensure_defined(
    definition: EnvironmentDefinition, home: Path, progress: Progress
) -> Environment:
    """The environment of a definition, as :func:`ensure` has it."""
    folder = environment_folder(home, definition)
    check_trusted(folder, definition.key)
    with hold(folder, definition.key, progress):
        record = _usable_record(definition, folder, progress)
        if record is None:
            record = build(definition, folder, progress)
        # When it was last used, for `prepare env gc` of whoever built it.
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
    """The record of an environment that can be used as it is; None where one is to be built.

    Raises:
        EnvironmentBuildError: it is damaged, and a running process uses it or it is not ours.
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
            f"the {definition.key} environment is damaged ({fault}) and not ours to rebuild",
            where=str(folder),
            hint="have it rebuilt by who built it (`prepare env build`, or the image), or set "
            "PREPARE_HOME to a folder that you may write to",
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
