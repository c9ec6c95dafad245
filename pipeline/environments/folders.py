"""Where managed environments lie, and having one's folder to oneself."""

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
    """Where managed environments lie."""
    return home / "environments"


def environment_folder(home: Path, definition: EnvironmentDefinition) -> Path:
    """Where the environment of a definition lies."""
    return (
        environments_folder(home) / f"{definition.key}-{definition.identity[:_IDENTITY_CHARACTERS]}"
    )


@contextmanager
def hold(folder: Path, key: str, progress: Progress) -> Iterator[None]:
    """Have an environment's folder to oneself; says so when another process has it.

    One that is there and not ours to build, as in an image, nobody builds who could be waited for.
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
            "set PREPARE_HOME to a folder that you may write to",
        ),
    ):
        lock_file(folder).parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(lock_file(folder))
        try:
            lock.acquire(timeout=0)
        except Timeout:
            progress.note(f"waiting for another process, which is building {key}")
            lock.acquire()
    try:
        with unwritable_umask():
            yield
    finally:
        lock.release()


def untrusted_environment_reason(folder: Path) -> str:
    """Return why another user may have changed the environment; '' if none may."""
    home = folder.parents[1]
    code = folder.glob("lib/python3*/site-packages")
    return untrusted_reason(home, folder.parent, folder, folder / "bin", *code)


def check_trusted(folder: Path, key: str) -> None:
    """Raise EnvironmentBuildError if another user may have changed the environment."""
    if why := untrusted_environment_reason(folder):
        raise EnvironmentBuildError(
            f"the {key} environment is not used: {why}",
            where=str(folder),
            hint="if all that lies there is yours, `chmod -R go-w` it; else set PREPARE_HOME to a "
            "folder that only you or root may write to",
        )


def is_buildable(folder: Path) -> bool:
    """Whether this process may build, and so replace, the environment that is there."""
    places = [folder, folder.parent, lock_file(folder), lock_file(folder).parent]
    return all(os.access(place, os.W_OK) for place in places if place.exists())


def is_held(folder: Path) -> bool:
    """Whether some process has the environment's folder to itself now."""
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
    """Beside the environments and never removed: removing a lock file is a race of its own."""
    return folder.parent / ".locks" / f"{folder.name}.lock"
