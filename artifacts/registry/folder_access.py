"""Whether a registry in a folder of this machine could be written."""

from __future__ import annotations

import os
from pathlib import Path

from pipeline.core.errors import RegistryError


def check_folder(folder: Path, where: str) -> None:
    """Refuse a registry's folder that may not be written, or made; it is not made here.

    Raises:
        RegistryError: names the folder, or what of its path is in the way.
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
    """Whether there is such a file or folder.

    Raises:
        RegistryError: that cannot be found out; says of what, and why.
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
