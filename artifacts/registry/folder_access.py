"""Write access to a registry's folder on this machine."""

from __future__ import annotations

import os
from pathlib import Path

from pipeline.core.errors import RegistryError


def check_folder(folder: Path, where: str) -> None:
    """Check that a registry's folder is writable or can be created; do not create it.

    Raises:
        RegistryError: it is not; names the folder or the obstacle in its path.
    """
    hidden: OSError | None = None
    for there in (folder, *folder.parents):
        try:
            if there.exists():
                break
        except OSError as error:  # of the last one, all that lies below it is hidden too
            hidden = error
    else:  # not even the current folder of a relative path
        raise _unusable_error(f"{folder} cannot be looked at", where)
    if not there.is_dir():
        what = f"{there} is not a folder"
    elif not os.access(there, os.W_OK | os.X_OK):
        what = f"{there} may not be written"
    elif hidden is not None:
        what = _words(hidden)
    else:
        return
    raise _unusable_error(what, where)


def is_there(path: Path, where: str) -> bool:
    """Return whether the file or folder exists.

    Raises:
        RegistryError: this cannot be determined; names the path and the reason.
    """
    try:
        return path.exists()
    except OSError as error:
        raise _unusable_error(_words(error), where) from error


def _words(error: OSError) -> str:
    return f"{error.filename}: {error.strerror}"


def _unusable_error(what: str, where: str) -> RegistryError:
    return RegistryError(
        f"the registry's folder cannot be used: {what}",
        where=where,
        hint="name with --registry a folder that you may write",
    )
