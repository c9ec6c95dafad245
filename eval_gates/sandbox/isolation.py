"""The ways to isolate a program, and what to do where none is available.

===============  ====================================================================
``bubblewrap``   bubblewrap is installed and works here
``namespaces``   the kernel lets this user make namespaces
``none``         no sandbox: a process with limits on time, memory and files. It can read
                 and write what the user can, use the network, and signal or trace the user's
                 other processes. A killed worker leaves its working folders in the
                 temporary folder. For machines that are isolated themselves.
===============  ====================================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pipeline.core.errors import StageError

Kind = Literal["bubblewrap", "namespaces", "none"]


class SandboxError(StageError):
    """Model-written code cannot be run here as asked, or the sandbox failed."""


@dataclass(frozen=True)
class Isolation:
    """A way to isolate a program, as it was found to work here.

    Attributes:
        kind: which way.
        program: bubblewrap's path.
        proc: whether a fresh /proc can be mounted; without, or a cgroup, the memory of a program's
            processes is not limited together, only one by one.
        host_named: whether bubblewrap can give its host a name; else the machine's is seen. In a
            container of Podman's that alone is forbidden.
        user_namespace: whether bubblewrap makes a user namespace; root can do without.
        nested_forbidden: whether bubblewrap can forbid namespaces within the sandbox.
        processes_limited: whether the kernel was seen to hold the limit on processes.
        calls_filtered: whether system calls were seen to be refused as :mod:`.calls` says.
        cgroup: where each program gets a control group of its own; empty where none can be made.
        hidden: folders that its programs see empty, where they would see them at all.
        for_tests: what the tests run in, if another way than the solution: it starts faster.
        passed_over: why ways that come before this one were not taken, or "not asked for".
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
        """One line for a log or a report."""
        words: list[str] = [self.kind]
        if self.kind == "none":
            words.append("(no sandbox: a process with limits)")
        else:
            words.append("in a cgroup" if self.cgroup else "without a cgroup")
            words += [] if self.proc else ["without /proc"]
            words += [] if self.processes_limited else ["without a limit on processes"]
            words += [] if self.calls_filtered else ["without a filter of system calls"]
        reasons = f"; passed over: {'; '.join(self.passed_over)}" if self.passed_over else ""
        return " ".join(words) + reasons


NONE = Isolation("none", proc=False, user_namespace=False)
