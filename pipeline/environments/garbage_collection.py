"""Removal of unused managed environments and compile caches."""

from __future__ import annotations

import os
import re
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from pipeline.environments.build import RECORD_NAME, folder_bytes, read_record
from pipeline.environments.compile_caches import caches_folder
from pipeline.environments.definition import definitions, environment_folder, environments_folder
from pipeline.environments.environment import lock_file, processes_using
from pipeline.environments.settings import Settings
from prepare.errors import EnvironmentBuildError, raise_as
from prepare.file_locks import locked
from recipes.accelerator import Accelerator

_FOLDER_NAME = re.compile(r"[\w.-]+-[0-9a-f]{16}")
_SECONDS_A_DAY = 86_400


@dataclass(frozen=True)
class RemovedItem:
    """An environment or cache that collection removes."""

    path: Path
    reason: str
    size_bytes: int


def collect(settings: Settings, *, dry_run: bool, older_than_days: float) -> list[RemovedItem]:
    """Remove incomplete environments, and outdated ones after days without use.

    Another checkout may use outdated ones. Compile caches go after the same time.
    """
    home = settings.home
    current = {environment_folder(home, definition) for definition in definitions(Accelerator)}
    removed = []
    is_ours = os.access(environments_folder(home), os.W_OK, effective_ids=True)  # or an image's
    for folder in sorted(environments_folder(home).glob("*")) if is_ours else ():
        if not folder.is_dir() or not _FOLDER_NAME.fullmatch(folder.name):
            continue
        with locked(lock_file(folder), wait=False) as is_free:
            reason = _reason_to_remove(folder, folder in current, older_than_days)
            if is_free and reason:
                removed += _remove(folder, reason, dry_run=dry_run)
    for folder in sorted(caches_folder(home).glob("*")):
        days = (time.time() - folder.lstat().st_mtime) / _SECONDS_A_DAY
        if folder.is_dir() and not folder.is_symlink() and days >= older_than_days:
            reason = f"compiled code, not used for {days:.0f} days"
            removed += _remove(folder, reason, dry_run=dry_run)
    return removed


def _reason_to_remove(folder: Path, is_current: bool, older_than_days: float) -> str:
    if read_record(folder) is None:
        return "half-built"
    days = (time.time() - (folder / RECORD_NAME).stat().st_mtime) / _SECONDS_A_DAY
    is_old = not is_current and days >= older_than_days
    return f"outdated, not used for {days:.0f} days" if is_old else ""


def _remove(folder: Path, reason: str, *, dry_run: bool) -> list[RemovedItem]:
    if processes_using(folder):
        return []
    item = RemovedItem(folder, reason, folder_bytes(folder))
    if not dry_run:
        cure = "remove it by hand, as the user who made it"
        with raise_as(EnvironmentBuildError, "it cannot be removed", str(folder), cure):
            # The record first: an interrupted removal leaves an incomplete build.
            (folder / RECORD_NAME).unlink(missing_ok=True)
            shutil.rmtree(folder)
    return [item]
