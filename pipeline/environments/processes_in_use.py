"""Which running processes use an environment, so that none has it pulled from under it."""

from __future__ import annotations

import os
from pathlib import Path


def processes_using(folder: Path) -> list[int]:
    """Ids of the processes that were started from, or have libraries loaded from, `folder`.

    Processes of other users that may not be looked into are left out.
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
        except OSError:  # it ended meanwhile, or is another user's
            return False
        # Of the command line only the program counts, not a path that an editor was given.
        if needle in (text.partition(b"\0")[0] if name == "cmdline" else text):
            return True
    return False
