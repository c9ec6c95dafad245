"""Managed Python environments: identify, ensure and use one.

uv builds one on first use. Its record is trusted unless other users can write to its folders. A
site's interpreter (``environments: {serve: {python: ...}}``) can replace it.
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from pipeline.environments.build import (
    RECORD_NAME,
    EnvironmentRecord,
    build,
    describe,
    fault_of,
    folder_bytes,
    interpreter_path,
    read_record,
)
from pipeline.environments.definition import (
    EnvironmentDefinition,
    define,
    detect_accelerator,
    environment_folder,
)
from pipeline.environments.settings import EnvironmentOverride, Settings
from prepare.errors import EnvironmentBuildError, raise_as
from prepare.events import Progress
from prepare.file_locks import is_locked, locked
from prepare.private_files import untrusted_reason, unwritable_umask
from recipes.accelerator import Accelerator

__all__ = [
    "Environment",
    "EnvironmentState",
    "EnvironmentStatus",
    "detect_accelerator",
    "ensure",
    "identity",
    "status",
]


@dataclass(frozen=True)
class Environment:
    """A Python environment that is ready for use."""

    name: str  # which environment it is
    accelerator: Accelerator  # requested accelerator
    identity: str  # digest of its definition; part of stage keys
    python: Path  # its interpreter
    versions: dict[str, str]  # version by normalized name of every installed package
    managed: bool  # False for a site's interpreter


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
    name: str
    accelerator: Accelerator
    state: EnvironmentState
    path: Path  # its folder, or an external interpreter
    size_bytes: int  # disk usage; 0 if missing or external
    identity: str
    reason: str = ""  # fault of a broken environment


def identity(name: str, accelerator: Accelerator, settings: Settings) -> str:
    """Return an environment's identity without building it.

    EnvironmentBuildError: a site's interpreter cannot be used.
    """
    override = settings.environments.get(name)
    definition = define(name, accelerator)
    return _describe(override, definition)[0] if override else definition.identity


def ensure(
    name: str,
    accelerator: Accelerator,
    settings: Settings,
    progress: Progress,
    *,
    force: bool = False,
) -> Environment:
    """Return the environment; build it on first use, or again with `force`.

    One process builds, others wait.
    """
    definition = define(name, accelerator)
    override = settings.environments.get(definition.name)
    if override is None:
        return ensure_defined(definition, settings.home, progress, force=force)
    digest, versions = _describe(override, definition)
    return Environment(
        definition.name, accelerator, digest, override.python, versions, managed=False
    )


def ensure_defined(
    definition: EnvironmentDefinition, home: Path, progress: Progress, *, force: bool = False
) -> Environment:
    """Ensure a defined environment; see :func:`ensure`."""
    folder = environment_folder(home, definition)
    if (distrust := find_distrust(definition, home)) is not None:
        raise distrust
    record = None if force else usable_record(definition, folder)
    if record is None:
        record = _build_once(definition, folder, progress, force=force)
    with suppress(OSError):  # time of last use, for `prepare gc`
        os.utime(folder / RECORD_NAME)
    return Environment(
        name=definition.name,
        accelerator=definition.accelerator,
        identity=record.identity,
        python=interpreter_path(folder),
        versions=record.versions,
        managed=True,
    )


def usable_record(definition: EnvironmentDefinition, folder: Path) -> EnvironmentRecord | None:
    """Return a complete environment's record, or None."""
    record = read_record(folder)
    return record if record and record.identity == definition.identity else None


def lock_file(folder: Path) -> Path:
    """Return the lock file; its removal would be a race."""
    return folder.parent / ".locks" / f"{folder.name}.lock"


def processes_using(folder: Path) -> list[int]:
    """Return processes that use `folder`, if readable."""
    needle = os.fsencode(folder) + b"/"
    users = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended, or belongs to another user
            # Only the program counts: an editor may have a file open.
            program = (process / "cmdline").read_bytes().partition(b"\0")[0]
            if needle in program or needle in (process / "maps").read_bytes():
                users.append(int(process.name))
    return sorted(set(users) - {os.getpid()})


def status(name: str, accelerator: Accelerator, settings: Settings) -> EnvironmentStatus:
    """Return an environment's state; change nothing."""
    definition = define(name, accelerator)
    override = settings.environments.get(definition.name)
    if override is None:
        return defined_status(definition, settings.home)
    digest = ""
    reason = ""
    try:
        digest, _ = _describe(override, definition)
    except EnvironmentBuildError as error:
        reason = error.message
    state = EnvironmentState.BROKEN if reason else EnvironmentState.EXTERNAL
    path = override.python
    return EnvironmentStatus(name, name, accelerator, state, path, 0, digest, reason)


def defined_status(definition: EnvironmentDefinition, home: Path) -> EnvironmentStatus:
    """Return the state of a definition's environment."""
    folder = environment_folder(home, definition)
    record = usable_record(definition, folder)
    reason = ""
    size = 0
    state = EnvironmentState.MISSING
    with suppress(OSError):  # a place that cannot be written to has no builder
        if is_locked(lock_file(folder)):
            state = EnvironmentState.BUILDING
    if state is EnvironmentState.MISSING and folder.is_dir():
        reason = _distrust(folder) or ("" if record else "its build did not finish")
        size = record.size_bytes if record else folder_bytes(folder)
        state = EnvironmentState.BROKEN if reason else EnvironmentState.READY
    key = definition.key
    name = definition.name
    accelerator = definition.accelerator
    own = definition.identity
    return EnvironmentStatus(key, name, accelerator, state, folder, size, own, reason)


def _build_once(
    definition: EnvironmentDefinition, folder: Path, progress: Progress, *, force: bool
) -> EnvironmentRecord:
    cure = "set PREPARE_HOME to a writable folder"
    what = "the folder of managed environments cannot be written to"
    with unwritable_umask():
        with raise_as(EnvironmentBuildError, what, str(folder.parent), cure):
            lock_file(folder).parent.mkdir(parents=True, exist_ok=True)
            lock_file(folder).touch()
        with locked(
            lock_file(folder),
            lambda who: progress.note(f"{definition.key}: {who}"),
            is_inherited=False,
        ):
            if not force and (record := usable_record(definition, folder)):
                return record  # another process built it meanwhile
            if users := processes_using(folder):
                raise EnvironmentBuildError(
                    f"the {definition.key} environment is in use and cannot be built again",
                    where=str(folder),
                    hint=f"end the processes that use it, then try again: "
                    f"{', '.join(map(str, users))}",
                )
            progress.note(f"building the {definition.key} environment (once)")
            return build(definition, folder, progress)


def find_distrust(definition: EnvironmentDefinition, home: Path) -> EnvironmentBuildError | None:
    """Return why an environment may not be used, or built, where others may write."""
    folder = environment_folder(home, definition)
    if not (why := _distrust(folder)):
        return None
    return EnvironmentBuildError(
        f"the {definition.key} environment is not trusted: {why}",
        where=str(folder),
        hint="if all files in the folder that is named are yours, `chmod -R go-w` that folder; or "
        "set PREPARE_HOME to one that only you or root can write to",
    )


def _distrust(folder: Path) -> str:
    """Return why another user may have changed the environment, or ''."""
    code = folder.glob("lib/python3*/site-packages")
    return untrusted_reason(folder.parents[1], folder.parent, folder, folder / "bin", *code)


def _describe(
    override: EnvironmentOverride, definition: EnvironmentDefinition
) -> tuple[str, dict[str, str]]:
    """Return digest and packages of a site's interpreter; raise EnvironmentBuildError."""
    try:
        interpreter = describe(override.python, definition.modules)
    except EnvironmentBuildError as error:
        error.hint = "correct `environments` in the settings file"
        raise
    if fault := fault_of(interpreter, definition):
        raise EnvironmentBuildError(
            f"the interpreter named for '{definition.name}' {fault}",
            where=str(override.python),
            hint="install them there, or remove it from `environments` in the settings file",
        )
    described = [str(override.python), interpreter.python, sorted(interpreter.versions.items())]
    return hashlib.sha256(json.dumps(described).encode()).hexdigest(), interpreter.versions
