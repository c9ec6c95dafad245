"""Write access to a registry's folder on this machine."""

from __future__ import annotations

import os
from pathlib import Path

from pipeline.core.errors import RegistryError, raise_as

UNUSABLE = "the registry's folder cannot be used"
HINT = "name with --registry a folder that you may write"


def check_folder(folder: Path, where: str) -> None:
    """Check that a registry's folder is writable or can be created; do not create it.

    Raises:
        RegistryError: it is not; names the folder or the obstacle in its path.
    """
    with raise_as(RegistryError, UNUSABLE, where, HINT):
        there = next((each for each in (folder, *folder.parents) if each.exists()), folder)
    if not there.is_dir():
        what = f"{there} is not a folder"
    elif not os.access(there, os.W_OK | os.X_OK):
        what = f"{there} may not be written"
    else:
        return
    raise RegistryError(f"{UNUSABLE}: {what}", where=where, hint=HINT)
