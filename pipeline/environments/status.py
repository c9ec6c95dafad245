"""State of environments; builds and repairs nothing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from pipeline.core.errors import EnvironmentBuildError
from pipeline.environments.definition import (
    Accelerator,
    EnvironmentDefinition,
    EnvironmentName,
    define,
)
from pipeline.environments.external import external_identity, require_modules
from pipeline.environments.folders import environment_folder, is_held
from pipeline.environments.health import find_fault
from pipeline.environments.record import folder_bytes, read_record
from pipeline.environments.settings import EnvironmentOverride, Settings


class EnvironmentState(StrEnum):
    """State of an environment."""

    MISSING = "missing"
    READY = "ready"
    BROKEN = "broken"
    BUILDING = "building"
    EXTERNAL = "external"


@dataclass(frozen=True)
class EnvironmentStatus:
    """State and facts of an environment."""

    key: str  # its name in folders and messages, such as ``serve-cpu``
    name: EnvironmentName
    accelerator: Accelerator
    state: EnvironmentState
    path: Path  # its folder, or an external interpreter
    size_bytes: int  # disk usage; 0 if missing or external
    identity: str
    reason: str = ""  # fault of a broken environment


def status(name: str, accelerator: Accelerator, settings: Settings) -> EnvironmentStatus:
    """Return the state of an environment."""
    definition = define(name, accelerator)
    override = settings.environments.get(definition.name)
    if override is None:
        return defined_status(definition, settings.home)
    return _external_status(definition, override)


def defined_status(definition: EnvironmentDefinition, home: Path) -> EnvironmentStatus:
    """Return the state of a definition's environment."""
    folder = environment_folder(home, definition)
    reason = ""
    size = 0
    if is_held(folder):
        state = EnvironmentState.BUILDING
    elif not folder.is_dir():
        state = EnvironmentState.MISSING
    else:
        record = read_record(folder)
        reason = find_fault(definition, folder, record) or ""
        size = record.size_bytes if record else folder_bytes(folder)
        state = EnvironmentState.BROKEN if reason else EnvironmentState.READY
    return EnvironmentStatus(
        key=definition.key,
        name=definition.name,
        accelerator=definition.accelerator,
        state=state,
        path=folder,
        size_bytes=size,
        identity=definition.identity,
        reason=reason,
    )


def _external_status(
    definition: EnvironmentDefinition, override: EnvironmentOverride
) -> EnvironmentStatus:
    digest, reason = "", ""
    try:
        digest = external_identity(override)[0]
        require_modules(definition, override)
    except EnvironmentBuildError as error:
        reason = error.message
    return EnvironmentStatus(
        key=str(definition.name),
        name=definition.name,
        accelerator=definition.accelerator,
        state=EnvironmentState.BROKEN if reason else EnvironmentState.EXTERNAL,
        path=override.python,
        size_bytes=0,
        identity=digest,
        reason=reason,
    )
