"""Folders of managed environments, and their locks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from pipeline.core.errors import EnvironmentBuildError, raise_as
from pipeline.core.events import Progress
from pipeline.core.private_files import untrusted_reason, unwritable_umask
from pipeline.environments.definition import EnvironmentDefinition

_IDENTITY_CHARACTERS = 16


def environments_folder(home: Path) -> Path:
    """Return the folder of all managed environments."""
    return home / "environments"


def environment_folder(home: Path, definition: EnvironmentDefinition) -> Path:
    """Return the folder of one environment."""
    return environments_folder(home) / folder_name(definition.key, definition.identity)


def folder_name(key: str, identity: str) -> str:
    """Return the name of an environment's folder."""
    return f"{key}-{identity[:_IDENTITY_CHARACTERS]}"


@contextmanager
def hold(folder: Path, key: str, progress: Progress) -> Iterator[None]:
    """Lock an environment's folder; note when another process holds it.

    An existing environment that is read-only, as in an image, needs no lock.
    """
    if folder.exists() and not is_buildable(folder):
        yield
        return
    with (
        unwritable_umask(),
        raise_as(
            EnvironmentBuildError,
            "the folder of managed environments cannot be written to",
            str(folder.parent),
            "set PREPARE_HOME to a writable folder",
        ),
    ):
        lock_file(folder).parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(lock_file(folder))
        try:
            lock.acquire(timeout=0)
        except Timeout:
            progress.note(f"waiting for another process that is building {key}")
            lock.acquire()
    try:
        with unwritable_umask():
            yield
    finally:
        lock.release()


def untrusted_environment_reason(folder: Path) -> str:
    """Return why another user may have changed the environment; '' if none can."""
    home = folder.parents[1]
    code = folder.glob("lib/python3*/site-packages")
    return untrusted_reason(home, folder.parent, folder, folder / "bin", *code)


def check_trusted(folder: Path, key: str) -> None:
    """Raise EnvironmentBuildError if another user may have changed the environment."""
    if why := untrusted_environment_reason(folder):
        raise EnvironmentBuildError(
            f"the {key} environment is not trusted: {why}",
            where=str(folder),
            hint="if all files there are yours, `chmod -R go-w` it; or set PREPARE_HOME to a "
            "folder that only you or root can write to",
        )


def is_buildable(folder: Path) -> bool:
    """Return whether this process can build, and so replace, the environment."""
    places = [folder, folder.parent, lock_file(folder), lock_file(folder).parent]
    return all(os.access(place, os.W_OK) for place in places if place.exists())


def is_held(folder: Path) -> bool:
    """Return whether a process holds the environment's lock."""
    if not lock_file(folder).exists() or not is_buildable(folder):
        return False
    lock = FileLock(lock_file(folder))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return True
    lock.release()
    return False


def lock_file(folder: Path) -> Path:
    """Return the lock file, which is never removed: removal would be a race."""
    return folder.parent / ".locks" / f"{folder.name}.lock"
