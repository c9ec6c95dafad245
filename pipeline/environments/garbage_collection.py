"""Removal of unused managed environments and compile caches."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from pipeline.core.errors import EnvironmentBuildError, raise_as
from pipeline.environments.compile_caches import caches_folder
from pipeline.environments.definition import Accelerator, EnvironmentName, define
from pipeline.environments.folders import environment_folder, environments_folder, lock_file
from pipeline.environments.processes_in_use import processes_using
from pipeline.environments.record import RECORD_NAME, folder_bytes, read_record
from pipeline.environments.settings import Settings

_FOLDER_NAME = re.compile(
    rf"({'|'.join(EnvironmentName)})(-({'|'.join(Accelerator)}))?-[0-9a-f]{{16}}"
)
_SECONDS_A_DAY = 86_400


@dataclass(frozen=True)
class RemovedItem:
    """An environment or cache that was, or would be, removed."""

    path: Path
    reason: str
    size_bytes: int


def collect(settings: Settings, *, dry_run: bool, older_than_days: float) -> list[RemovedItem]:
    """Remove incomplete environments, and outdated ones that were not used for so many days.

    Environments that are being built or used stay. Outdated ones stay for a while because another
    checkout of prepare may use them. Compile caches go after the same time without a server start.
    """
    current = set(_current_folders(settings.home))
    removed = []
    for folder in sorted(environments_folder(settings.home).glob("*")):
        if folder.is_dir() and _FOLDER_NAME.fullmatch(folder.name):
            found = _collect_one(folder, folder in current, dry_run, older_than_days)
            if found is not None:
                removed.append(found)
    caches = [_collect_cache(each, dry_run, older_than_days) for each in _caches(settings.home)]
    return [*removed, *(found for found in caches if found is not None)]


def _current_folders(home: Path) -> Iterator[Path]:
    for name in EnvironmentName:
        for accelerator in Accelerator:
            yield environment_folder(home, define(name, accelerator))


def _caches(home: Path) -> list[Path]:
    found = sorted(caches_folder(home).glob("*"))
    return [each for each in found if each.is_dir() and not each.is_symlink()]


def _collect_cache(folder: Path, dry_run: bool, older_than_days: float) -> RemovedItem | None:
    days = (time.time() - folder.stat().st_mtime) / _SECONDS_A_DAY
    if days < older_than_days or processes_using(folder):
        return None
    found = RemovedItem(
        folder, f"compiled code, not used for {days:.0f} days", folder_bytes(folder)
    )
    if not dry_run:
        with raise_as(
            EnvironmentBuildError, "a cache cannot be removed", str(folder), "remove it by hand"
        ):
            shutil.rmtree(folder)
    return found


def _collect_one(
    folder: Path, is_current: bool, dry_run: bool, older_than_days: float
) -> RemovedItem | None:
    try:
        lock_file(folder).parent.mkdir(exist_ok=True)
        with FileLock(lock_file(folder), timeout=0):
            reason = _reason_to_remove(folder, is_current, older_than_days)
            if reason is None or processes_using(folder):
                return None
            found = RemovedItem(folder, reason, folder_bytes(folder))
            if not dry_run:
                # Remove the record first: an interrupted removal then leaves an incomplete build.
                (folder / RECORD_NAME).unlink(missing_ok=True)
                shutil.rmtree(folder)
            return found
    except Timeout:  # in use by a build or check
        return None
    except OSError as error:
        raise EnvironmentBuildError(
            f"an environment cannot be removed: {error.strerror}",
            where=str(error.filename or folder),
            hint="remove it by hand, as the user who built it",
        ) from error


def _reason_to_remove(folder: Path, is_current: bool, older_than_days: float) -> str | None:
    if read_record(folder) is None:
        return "half-built"
    if is_current:
        return None
    days = (time.time() - (folder / RECORD_NAME).stat().st_mtime) / _SECONDS_A_DAY
    return f"outdated, not used for {days:.0f} days" if days >= older_than_days else None
