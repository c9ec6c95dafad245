"""Sandboxes for model-written code and for the tests of a dataset.

:mod:`.execution` starts a grading process (:mod:`.grading`) for each program, which starts two
sandboxes; pid 1 of each is :mod:`.sandbox_init`. In one, :mod:`.code_runner` runs the model's code.
In the other, :mod:`.grader` runs the problem's tests. Only pipes connect the two: the code runner
receives calls and returns plain data.

Not prevented: a kernel hole behind a system call that :mod:`.seccomp_filter` allows; answers stored
in the solution; reading the machine's load, kernel version and number of cores. Without a
:mod:`.cgroup`, a program can also hold about 300 MB in buffers until the time limit.

These modules import only the standard library and each other, for a fast start.
"""

from __future__ import annotations

TYPE_CHECKING = False  # importing typing would slow down each start in bubblewrap
if TYPE_CHECKING:
    from typing import Any

    from eval_gates.sandbox.execution import Execution, Program, run_many, run_program
    from eval_gates.sandbox.isolation import Isolation, SandboxError
    from eval_gates.sandbox.isolation_probe import choose_isolation

__all__ = [
    "Execution",
    "Isolation",
    "Program",
    "SandboxError",
    "choose_isolation",
    "run_many",
    "run_program",
]

_HOMES = {
    "isolation_probe": ("choose_isolation",),
    "execution": ("Execution", "Program", "run_many", "run_program"),
    "isolation": ("Isolation", "SandboxError"),
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
