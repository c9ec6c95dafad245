"""CPU time of this process's descendants, and how long they waited for a CPU."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

# Fields of /proc/PID/stat after the process name.
_STATE, _PARENT = 0, 1
_TICKS = slice(11, 15)  # its own, and those of reaped children


class CpuTime(NamedTuple):
    """CPU time in seconds.

    Attributes:
        used: by all descendants, including reaped ones.
        waited: runnable without a CPU: this process and, for each child, the process of its tree
            that waited longest; 0 if the kernel does not count it.
        runnable: whether a descendant runs or waits now; `waited` excludes that wait.
    """

    used: float
    waited: float
    runnable: bool


def read_cpu_time() -> CpuTime:
    """Read the CPU time of this process's descendants."""
    fields: dict[int, list[str]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields[int(path.parent.name)] = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
    me = os.getpid()
    trees = [_process_tree(child, fields) for child in _children(me, fields)]
    pids = [pid for tree in trees for pid in tree]
    ticks = [int(tick) for pid in pids for tick in fields[pid][_TICKS]]
    return CpuTime(
        used=sum(ticks) / os.sysconf("SC_CLK_TCK"),
        waited=_read_wait_s(me) + sum(max(map(_read_wait_s, tree)) for tree in trees),
        runnable=any(fields[pid][_STATE] == "R" for pid in pids),
    )


def _children(parent: int, fields: dict[int, list[str]]) -> list[int]:
    return [pid for pid, stat in fields.items() if int(stat[_PARENT]) == parent]


def _process_tree(process: int, fields: dict[int, list[str]]) -> list[int]:
    tree = [process]
    for pid in tree:
        tree += _children(pid, fields)
    return tree


def _read_wait_s(pid: int) -> float:
    try:
        nanoseconds = Path(f"/proc/{pid}/schedstat").read_text().split()[1]
    except (OSError, IndexError):  # it has ended, or this kernel does not count
        return 0.0
    return int(nanoseconds) / 1e9
