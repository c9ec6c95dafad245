"""How many HumanEval checks a second the sandbox does, by isolation, side by side in one run.

    .venv/bin/python benchmarks/sandbox_checks.py [ENVIRONMENT/bin/python]

Runs all 164 canonical solutions against their tests in every isolation that works here, with as
many workers as there are cores to use; the isolations take turns, problem set by problem set. By
default in the real evaluation environment (built if needed), whose interpreter runs the programs.
The last line is JSON: by isolation, checks a second (median over the rounds), how many of the
solutions passed, the speed as a ratio to `none`, and CPU time a check, which other work on
the machine disturbs less.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROUNDS = 3
SECONDS, MEMORY_BYTES = 10, 2**30
INSIDE = "--inside"


def measure() -> int:
    """Measure in this interpreter's environment; 1 if a canonical solution did not pass."""
    from eval_gates.sandbox import Isolation, SandboxError, choose_isolation, run_many
    from eval_gates.suites.humaneval import program, read_problems

    problems = read_problems()
    programs = [program(p, p.prompt + p.canonical_solution) for p in problems]
    found: dict[str, Isolation] = {}
    for wanted in ("none", "namespaces", "bubblewrap"):
        try:
            found[wanted] = choose_isolation(wanted)
        except SandboxError as error:
            print(error)
    speeds: dict[str, list[float]] = {kind: [] for kind in found}
    milliseconds: dict[str, list[float]] = {kind: [] for kind in found}
    passed = dict.fromkeys(found, len(problems))
    for _ in range(ROUNDS):
        for kind, isolation in found.items():
            started, spent = time.perf_counter(), processor_seconds()
            executions = run_many(
                programs, seconds=SECONDS, memory_bytes=MEMORY_BYTES, isolation=isolation
            )
            speeds[kind].append(len(programs) / (time.perf_counter() - started))
            spent = processor_seconds() - spent
            milliseconds[kind].append(1000 * spent / len(programs))
            passed[kind] = min(passed[kind], sum(e.passed for e in executions))
            for problem, execution in zip(problems, executions, strict=True):
                if not execution.passed:
                    print(f"{kind}: {problem.task_id} {execution.outcome}: {execution.detail}")
            print(f"{isolation}: {speeds[kind][-1]:.1f} checks/s")
    medians = {kind: statistics.median(rates) for kind, rates in speeds.items()}
    figures = {
        "python": sys.version.split()[0],
        "cores": len(os.sched_getaffinity(0)),
        "root": os.geteuid() == 0,
        "problems": len(problems),
        "checks_per_second": {kind: round(rate, 1) for kind, rate in medians.items()},
        "processor_ms_per_check": {
            kind: round(statistics.median(spent), 1) for kind, spent in milliseconds.items()
        },
        "passed": passed,
        "ratio_to_none": {kind: round(rate / medians["none"], 3) for kind, rate in medians.items()},
    }
    print(json.dumps(figures))
    return 0 if all(count == len(problems) for count in passed.values()) else 1


def processor_seconds() -> float:
    """CPU time of this process and of all children that have ended."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def main(arguments: list[str]) -> int:
    """Measure in the evaluation environment, or in the named one; its exit code."""
    if arguments == [INSIDE]:
        return measure()
    root = Path(__file__).resolve().parents[1]
    python = arguments[0] if arguments else _evaluation_python()
    environment = {**os.environ, "PYTHONPATH": str(root)}
    return subprocess.run([python, __file__, INSIDE], env=environment, check=False).returncode


def _evaluation_python() -> str:
    from pipeline.core.events import NullProgress
    from pipeline.environments.environment import Accelerator, ensure
    from pipeline.environments.settings import load_settings

    return str(ensure("evaluate", Accelerator.CPU, load_settings(), NullProgress()).python)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
