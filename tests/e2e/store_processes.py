"""Which live processes belong to runs on a store, of whichever command on this machine."""

from __future__ import annotations

import os
import time
from pathlib import Path


def processes_of(store: Path) -> list[str]:
    """Process ids and command lines of live processes that belong to runs on this store.

    They are known by `PREPARE_STORE` in the environment that they inherited, by the store's path on
    their command line, or by a file of the store that they have open: vLLM's inner processes
    overwrite the former two with a title, and have the server's log as their output.
    """
    marker, path = f"PREPARE_STORE={store}".encode(), os.fsencode(store)
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            command = (entry / "cmdline").read_bytes()
            inherited = (entry / "environ").read_bytes().split(b"\0")
            ours = marker in inherited or path in command or _has_open(entry, store)
        except OSError:
            continue  # it ended while we looked, or is another user's
        if ours:
            found.append(f"{entry.name} {command.replace(bytes(1), b' ').decode()}")
    return found


def _has_open(process: Path, store: Path) -> bool:
    """Whether a file of the store is open."""
    for descriptor in (process / "fd").iterdir():
        try:
            if descriptor.readlink().is_relative_to(store):
                return True
        except OSError:
            continue  # it was closed while we looked
    return False


def parent_of(process: int) -> int:
    """The process that started it, or has adopted it."""
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def left_after(store: Path, seconds: float = 30) -> list[str]:
    """What is still alive once the processes have had their grace to end."""
    deadline = time.monotonic() + seconds
    while (alive := processes_of(store)) and time.monotonic() < deadline:
        time.sleep(0.5)
    return alive
