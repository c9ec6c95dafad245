"""How much processor time this process's descendants had, and how long they waited for one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

# Places in what follows a process's name.
_STATE, _PARENT = 0, 1
_TICKS = slice(11, 15)  # its own, and of those that it has waited for


class CpuTime(NamedTuple):
    """In seconds.

    Attributes:
        used: by all descendants together, and by those of theirs that they have waited for.
        waited: while it could have run but others did: this process and, of each of its children,
            the process that waited longest. 0 where the kernel does not count.
        runnable: whether a descendant runs or waits now; that wait is in `waited` only afterwards.
    """

    used: float
    waited: float
    runnable: bool


def processor_time() -> CpuTime:
    """Of this process's descendants, so far."""
    fields: dict[int, list[str]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields[int(path.parent.name)] = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
    me = os.getpid()
    families = [_family_of(child, fields) for child in _children_of(me, fields)]
    everyone = [pid for family in families for pid in family]
    ticks = [int(tick) for pid in everyone for tick in fields[pid][_TICKS]]
    return CpuTime(
        used=sum(ticks) / os.sysconf("SC_CLK_TCK"),
        waited=_read_waiting(me) + sum(max(map(_read_waiting, each)) for each in families),
        runnable=any(fields[pid][_STATE] == "R" for pid in everyone),
    )


def _children_of(parent: int, fields: dict[int, list[str]]) -> list[int]:
    return [pid for pid, stat in fields.items() if int(stat[_PARENT]) == parent]


def _family_of(process: int, fields: dict[int, list[str]]) -> list[int]:
    """The process and all its descendants."""
    family = [process]
    for one in family:
        family += _children_of(one, fields)
    return family


def _read_waiting(pid: int) -> float:
    try:
        nanoseconds = Path(f"/proc/{pid}/schedstat").read_text().split()[1]
    except (OSError, IndexError):  # it has ended, or this kernel does not count
        return 0.0
    return int(nanoseconds) / 1e9
