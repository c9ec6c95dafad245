"""Processes that use an environment, which must not be removed under them."""

from __future__ import annotations

import os
from pathlib import Path


def processes_using(folder: Path) -> list[int]:
    """Return ids of processes started from `folder`, or with libraries loaded from it.

    Unreadable processes of other users are left out.
    """
    needle = os.fsencode(folder) + b"/"
    return sorted(
        int(process.name)
        for process in Path("/proc").glob("[0-9]*")
        if int(process.name) != os.getpid() and _mentions(process, needle)
    )


def _mentions(process: Path, needle: bytes) -> bool:
    for name in ("cmdline", "maps"):
        try:
            text = (process / name).read_bytes()
        except OSError:  # it ended, or belongs to another user
            return False
        # Only the program counts, not its arguments: an editor may have a file open.
        if needle in (text.partition(b"\0")[0] if name == "cmdline" else text):
            return True
    return False
