"""Sandboxes for model-written code and for the tests that come with a dataset.

Our own process (:mod:`.execution`) starts a **judge** (:mod:`.judge`) for each program. The judge
starts two sandboxes, each under a **keeper** (:mod:`.keeper`) that is pid 1 there. In one a
**solver** (:mod:`.solver`) runs the model's code, in the other a **grader** (:mod:`.grader`) runs
the problem's tests. The grader reaches the solver by pipes alone.

The tests are never in the process that runs the model's code. It is asked for one answer a call,
as plain data, so there is no report, nonce or assertion in it that could be read, forged or
patched: to pass, it has to answer rightly.

What this does not prevent: a hole in the kernel behind a call that :mod:`.calls` allows; a solution
that carries its answers instead of computing them; reading the machine's load, kernel version and
number of cores; and without a :mod:`.cgroup`, holding up to about 300 MB in buffers until its time
is up. The isolation `none` is no sandbox at all: see :mod:`.isolation`.

Judge, keepers, solver and grader run in a bare interpreter that has to start fast: their modules
import the standard library and each other only, and this one imports what it offers when it is
asked.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing would be a good part of a solver's start in bubblewrap
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
