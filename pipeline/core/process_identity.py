"""Which node and process this is, so that others can tell whether it still lives.

Process ids mean something only to who sees the same processes: the node is told by its kernel's
boot and by its process namespace, so a container is a node of its own.
"""

from __future__ import annotations

import os
import platform
from functools import cache
from pathlib import Path

from pipeline.core.digest import digest_json

_ENDED = ("Z", "X", "x")  # ended, and not yet reaped


@cache
def node_identity() -> str:
    """Names all processes that see each other: machine, boot and process namespace, as a digest."""
    return digest_json(
        [
            platform.node(),
            _read_text(Path("/etc/machine-id")),
            _read_text(Path("/proc/sys/kernel/random/boot_id")),
            _process_namespace(),
        ]
    )


def start_ticks(pid: int) -> int | None:
    """When the process began, in clock ticks since boot; None where no such process lives.

    With its id it names a process for good: ids come round again. 0 where it may not be looked at.
    """
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass  # another user's
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    # The command's name is in parentheses and may hold blanks; state and field 22 follow it.
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
