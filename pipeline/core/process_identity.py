"""Identity of a node and a process, so that other processes can detect its end.

Process ids are valid only within one boot and one process namespace, so a container counts as a
separate node.
"""

from __future__ import annotations

import os
import platform
from functools import cache
from pathlib import Path

from pipeline.core.digest import digest_json

_ENDED = ("Z", "X", "x")  # ended, but not reaped


@cache
def node_identity() -> str:
    """Return a digest of machine, boot and process namespace."""
    return digest_json(
        [
            platform.node(),
            _read_text(Path("/etc/machine-id")),
            _read_text(Path("/proc/sys/kernel/random/boot_id")),
            _process_namespace(),
        ]
    )


def start_ticks(pid: int) -> int | None:
    """Return the start time in clock ticks since boot; None if the process does not exist.

    Together with the id it identifies a process, since ids are reused. 0 means that it is not
    readable.
    """
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass  # it belongs to another user
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    # The command name is in parentheses and can contain spaces; state and field 22 follow it.
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in _ENDED else int(fields[19])


def _read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _process_namespace() -> int:
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return 0
