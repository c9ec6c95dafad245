"""Whether a registry in a folder of this machine could be written."""

from __future__ import annotations

import os
from pathlib import Path

from pipeline.errors import RegistryError


def check_folder(folder: Path, where: str) -> None:
    """Refuse a folder that may not be written, or made; it is not made here.

    Args:
        folder: of the registry, which need not be there.
        where: the registry's address, as users know it.

    Raises:
        RegistryError: names the folder, or what of its path is in the way.
    """
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not there.is_dir():
        what = "is not a folder"
    elif not os.access(there, os.W_OK | os.X_OK):
        what = "may not be written"
    else:
        return
    raise RegistryError(
        f"the registry's folder cannot be used: {there} {what}",
        where=where,
        cure="name with --registry a folder that you may write",
    )
