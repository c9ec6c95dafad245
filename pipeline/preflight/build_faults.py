"""Why environments could not be built or used here, known before the first one is."""

from __future__ import annotations

import ctypes
import shutil
import tempfile
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from rich.filesize import decimal

from pipeline.environments.definition import EnvironmentDefinition, define, environments_folder
from pipeline.environments.environment import (
    EnvironmentState,
    defined_status,
    find_distrust,
)
from pipeline.environments.settings import Settings
from pipeline.preflight.machine import existing_folder
from prepare.errors import PreflightError
from prepare.user_path import nearest_existing
from recipes.accelerator import Accelerator
from recipes.engines.engine import Engine

LARGER_DISK = "free some (`prepare gc` may help), or set PREPARE_HOME to a larger disk"
OTHER_HOME = "set PREPARE_HOME to a folder that you may write to"
_TO_BUILD = (EnvironmentState.MISSING, EnvironmentState.BROKEN)


def find_build_faults(
    names: Iterable[str], accelerator: Accelerator, settings: Settings, *, at_once: int = 0
) -> Iterator[PreflightError]:
    """Yield what the environments lack, all that are missing together.

    `at_once` are bytes that the same run writes to the same disk. UsageError: no such environment.
    """
    managed = _managed(names, accelerator, settings)
    distrust = (find_distrust(definition, settings.home) for definition in managed)
    if (error := next(filter(None, distrust), None)) is not None:
        yield PreflightError(error.message, where=error.where, hint=error.hint)
        return
    missing = _missing(managed, settings)
    if not missing:
        return
    folder = environments_folder(settings.home)
    if fault := find_write_fault(folder):
        yield PreflightError(
            f"environments cannot be built: {fault}", where=str(folder), hint=OTHER_HOME
        )
        return
    needed = sum(definition.disk_bytes for definition in missing)
    free = shutil.disk_usage(existing_folder(folder)).free
    if needed + at_once > free:
        keys = ", ".join(definition.key for definition in missing)
        rest = f", with {decimal(at_once)} for variants" if at_once else ""
        yield PreflightError(
            f"the environments that are not built yet ({keys}) need {decimal(needed)} of disk"
            f"{rest}, {decimal(free)} are free",
            where=str(folder),
            hint=LARGER_DISK,
        )


def bytes_to_build(names: Iterable[str], accelerator: Accelerator, settings: Settings) -> int:
    """Return the disk that the missing ones of these environments take."""
    missing = _missing(_managed(names, accelerator, settings), settings)
    return sum(definition.disk_bytes for definition in missing)


def find_library_fault(
    engine: Engine, accelerator: Accelerator, settings: Settings
) -> PreflightError | None:
    """Return the system library that the engine's build for CPUs lacks here.

    A site's own interpreter may have its libraries next to it.
    """
    if accelerator is not Accelerator.CPU or engine.environment in settings.environments:
        return None
    for library, package in engine.cpu_libraries.items():
        try:
            ctypes.CDLL(library)
        except OSError as error:
            return PreflightError(
                f"{engine.title} needs {library} on a CPU: {error}",
                hint=f"install it, such as Debian's {package}",
            )
    return None


def find_write_fault(path: Path) -> str:
    """Return why no file can be made there, or ''.

    Root passes permission checks on a read-only mount, so a write is tried.
    """
    folder = nearest_existing(path)
    try:
        with tempfile.TemporaryFile(dir=folder):
            return ""
    except OSError as error:
        return f"{folder} cannot be written to: {error.strerror}"


def _managed(
    names: Iterable[str], accelerator: Accelerator, settings: Settings
) -> list[EnvironmentDefinition]:
    return [define(name, accelerator) for name in names if name not in settings.environments]


def _missing(
    managed: Collection[EnvironmentDefinition], settings: Settings
) -> list[EnvironmentDefinition]:
    return [
        definition
        for definition in managed
        if defined_status(definition, settings.home).state in _TO_BUILD
    ]
