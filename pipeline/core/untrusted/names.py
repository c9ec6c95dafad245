"""Checks of untrusted names and paths before files are created from them."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import PurePosixPath

from pipeline.core.untrusted.file import MAX_NAMES

MAX_NAME_BYTES = 255
MAX_PATH_DEPTH = 16


def is_plain_name(name: str) -> bool:
    """Return whether any Linux file system accepts the name and a terminal can print it."""
    return (
        name.isprintable()
        and "/" not in name
        and name not in ("", ".", "..")
        and len(name.encode()) <= MAX_NAME_BYTES
    )


def is_plain_path(path: str) -> bool:
    """Return whether it is a normalized relative path of plain names."""
    parts = path.split("/")
    return len(parts) <= MAX_PATH_DEPTH and all(map(is_plain_name, parts))


def check_tree(paths: Collection[str]) -> None:
    """Raise ValueError unless these paths can be all files of one directory.

    Errors are a path outside, one that is too deep or below another file, and too many paths.
    """
    if len(paths) > MAX_NAMES:
        raise ValueError(f"more than {MAX_NAMES:,} files, the limit")
    for path in paths:
        if not is_plain_path(path):
            raise ValueError(f"{path[:80]!a} is not a valid relative path")
        for folder in PurePosixPath(path).parents:
            if str(folder) in paths:
                raise ValueError(f"{path[:80]!a} is below a file")
