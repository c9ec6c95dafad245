"""Ways to isolate a program.

===============  ====================================================================
``bubblewrap``   bubblewrap is installed and works here
``namespaces``   the kernel lets this user make namespaces
``none``         no sandbox, only limits on time, memory and files; for isolated
                 machines. The program can read and write the user's files, use the
                 network, and signal or trace the user's other processes.
===============  ====================================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pipeline.core.errors import StageError

Kind = Literal["bubblewrap", "namespaces", "none"]


class SandboxError(StageError):
    """Model-written code cannot run here as requested, or the sandbox failed."""


@dataclass(frozen=True)
class Isolation:
    """Way to isolate a program, as it works on this machine.

    Attributes:
        program: bubblewrap's path.
        proc: whether a fresh /proc can be mounted. Without it and without a cgroup, memory is
            limited for each process alone.
        host_named: whether bubblewrap can set the host name. Podman's containers forbid it.
        user_namespace: whether bubblewrap makes a user namespace; root can do without.
        nested_forbidden: whether bubblewrap can forbid nested namespaces.
        processes_limited: whether a probe confirmed the limit on processes.
        calls_filtered: whether a probe confirmed :mod:`.seccomp_filter`.
        cgroup: where each program gets its own control group; empty if none can be made.
        hidden: folders that its programs see as empty.
        for_tests: the isolation of the tests, if a faster one differs.
        passed_over: why preferred ways were not used.
    """

    kind: Kind
    program: str = ""
    proc: bool = True
    host_named: bool = True
    user_namespace: bool = True
    nested_forbidden: bool = False
    processes_limited: bool = False
    calls_filtered: bool = False
    cgroup: str = ""
    hidden: tuple[str, ...] = ()
    for_tests: Isolation | None = None
    passed_over: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts: list[str] = [self.kind]
        if self.kind == "none":
            parts.append("(no sandbox: a process with limits)")
        else:
            parts.append("in a cgroup" if self.cgroup else "without a cgroup")
            parts += [] if self.proc else ["without /proc"]
            parts += [] if self.processes_limited else ["without a limit on processes"]
            parts += [] if self.calls_filtered else ["without a filter of system calls"]
        reasons = f"; passed over: {'; '.join(self.passed_over)}" if self.passed_over else ""
        return " ".join(parts) + reasons


NONE = Isolation("none", proc=False, user_namespace=False)
