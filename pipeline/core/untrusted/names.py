"""Names and paths that others chose, of which files are to be made here."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import PurePosixPath

from pipeline.core.untrusted.file import MAX_NAMES

MAX_NAME_BYTES = 255
MAX_PATH_DEPTH = 16


def is_plain_name(name: str) -> bool:
    """Whether a file of any Linux file system may have this name, and a terminal may show it."""
    return (
        name.isprintable()
        and "/" not in name
        and name not in ("", ".", "..")
        and len(name.encode()) <= MAX_NAME_BYTES
    )


def is_plain_path(path: str) -> bool:
    """Whether it is a relative path of plain names, written in the one usual way."""
    parts = path.split("/")
    return len(parts) <= MAX_PATH_DEPTH and all(map(is_plain_name, parts))


def check_tree(paths: Collection[str]) -> None:
    """Raise ValueError unless these can be all the files of one folder.

    A path leads outside or is too deep, one file lies in another, or there are too many.
    """
    if len(paths) > MAX_NAMES:
        raise ValueError(f"more than {MAX_NAMES:,} files, the limit")
    for path in paths:
        if not is_plain_path(path):
            raise ValueError(f"{path[:80]!a} is no path of a file in a folder")
        for folder in PurePosixPath(path).parents:
            if str(folder) in paths:
                raise ValueError(f"{path[:80]!a} lies in a file")
