"""Grades one program: a grader runs its tests against a solution, each in its own sandbox.

This process runs no untrusted code and enforces the time limit. It reads the tests only after both
forks, so the solution's memory never has them.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

# Imported here for the inits forked from this process: a sandbox does not show our code.
from eval_gates.sandbox import cgroup, code_runner, grader, linux_syscalls  # noqa: F401
from eval_gates.sandbox.cpu_time import read_cpu_time
from eval_gates.sandbox.framing import FramingError, read_answer, read_message, write_message
from eval_gates.sandbox.launch import BrokenSandboxError, Sandbox, end_children

_LAUNCH_TIMEOUT_S = 30.0
MAX_WAIT_FACTOR = 8  # limit of the wall-clock time, in time limits
_MIN_CHECK_SHARE = 0.05
_OUTCOMES = ("passed", "failed", "timeout", "memory", "crashed")


def grade_program(
    task: int, errors: int, report: int, *, parent: int, code_folder: str
) -> NoReturn:
    """Grade one program in this process.

    Args:
        task: a file with two messages: the settings, and the grader's request.
        errors: becomes standard error.
        report: takes ``{"begun": true}``, then the grader's answer, or ``{"broken": str}``.
        parent: the process to end with.
    """
    linux_syscalls.die_with_parent()
    if os.getppid() != parent:  # it ended before the call above
        os._exit(1)
    os.dup2(task, 0)
    os.dup2(errors, 2)
    os.close(task)
    os.close(errors)
    os.set_inheritable(report, False)
    settings = read_message(0)
    linux_syscalls.adopt_orphans()
    _alarm(_LAUNCH_TIMEOUT_S, lambda: _finish(report, broken="the sandbox did not start in time"))
    orders = settings["orders"]
    try:
        # The children keep standard error and their pipes, and close everything else.
        solution = Sandbox(settings["solver"], code_folder)
        pipes = (solution.requests, solution.answers, solution.notices)
        tests = Sandbox(settings["grader"], code_folder, pipes)
        solution.start({**orders, "role": "solver"})
        tests.start({**orders, "role": "grader"})
    except (OSError, BrokenSandboxError) as error:
        _finish(report, broken=str(error))
    solution.hand_over()
    linux_syscalls.forbid_tracing()  # only now: the children needed access until here
    write_message(report, {"begun": True})
    _Grading(solution, tests, settings, report).run()


class _Grading:
    def __init__(
        self, solution: Sandbox, tests: Sandbox, settings: dict[str, Any], report: int
    ) -> None:
        self._solution = solution
        self._tests = tests
        self._report = report
        self._seconds: float = settings["wall_seconds"]
        self._group: str = settings["solver"]["cgroup"]
        self._started = time.monotonic()

    def run(self) -> NoReturn:
        task = read_message(0)
        self._started = time.monotonic()
        _alarm(self._seconds, self._check_time)
        try:
            write_message(self._tests.requests, task)
            verdict = read_answer(self._tests.answers, self._tests.notices)
        except (OSError, EOFError):
            self._finish(*self._describe_grader_exit())
        except FramingError as error:
            self._finish("crashed", str(error))
        if not isinstance(verdict, dict):
            self._finish("crashed", "the tests wrote no verdict")
        if "broken" in verdict:
            self._end()
            _finish(self._report, broken=str(verdict["broken"]))
        outcome, detail = verdict.get("outcome"), str(verdict.get("detail", ""))
        if outcome not in _OUTCOMES:
            outcome, detail = "crashed", "the tests wrote no verdict"
        if outcome in ("failed", "crashed") and cgroup.was_killed_for_memory(self._group):
            outcome, detail = "memory", "the memory limit was reached"
        self._finish(outcome, detail)

    def _describe_grader_exit(self) -> tuple[str, str]:
        detail = "grading its answers exceeded the limits"
        try:
            notice = read_message(self._tests.notices)
            status, memory = int(notice["status"]), bool(notice["memory"])
        except (EOFError, FramingError, KeyError):  # its init was killed
            return "crashed", detail
        if memory:
            return "memory", detail
        return ("timeout" if status == -signal.SIGXCPU else "crashed"), detail

    def _check_time(self) -> None:
        passed = time.monotonic() - self._started
        try:
            cpu_time = read_cpu_time()
        except BaseException:
            self._finish("timeout", f"still running after {passed:.3g} s")
        left = self._seconds - passed + cpu_time.waited
        starved = (left > 0 or cpu_time.runnable) and cpu_time.used < self._seconds
        if starved and passed < MAX_WAIT_FACTOR * self._seconds:
            _alarm(max(left, _MIN_CHECK_SHARE * self._seconds), self._check_time)
        else:
            self._finish("timeout", f"still running after {passed:.3g} s")

    def _finish(self, outcome: str, detail: str) -> NoReturn:
        self._end()
        _finish(self._report, outcome=outcome, detail=detail)

    def _end(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        self._tests.end()
        self._solution.end()
        end_children()


def _alarm(seconds: float, act: Callable[[], None]) -> None:
    def ring(number: int, frame: FrameType | None) -> None:
        act()

    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, math.ulp(1.0)))


def _finish(report: int, **content: str) -> NoReturn:
    write_message(report, content)
    os._exit(0)
