"""Files and folders that nobody else may read: questions, answers and weights may be private."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

FOR_OTHERS = stat.S_IRWXG | stat.S_IRWXO


@contextmanager
def keep_private() -> Iterator[None]:
    """What is made meanwhile is 0700 or 0600."""
    before = os.umask(FOR_OTHERS)
    try:
        yield
    finally:
        os.umask(before)


def open_log(path: Path) -> IO[bytes]:
    """The file, to be written at its end; a new one is ours alone."""
    with keep_private():
        return path.open("ab")


def make_private(folder: Path) -> None:
    """Make the folder ours alone, or take others' rights from one that is there.

    Raises:
        PermissionError: it is another user's, and open to others.
        OSError: it cannot be made.
    """
    with keep_private():
        folder.mkdir(parents=True, exist_ok=True)
    mode = stat.S_IMODE(folder.stat().st_mode)
    if mode & FOR_OTHERS:
        folder.chmod(mode & ~FOR_OTHERS)
