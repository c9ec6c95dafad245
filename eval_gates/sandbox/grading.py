"""Judges one program: a grader runs its tests against a solution, each in a sandbox of its own.

Forked by :mod:`eval_gates.sandbox.fork_server` from a bare interpreter. No code of a model's or a
dataset's runs in this process. It starts and ends both sandboxes, and holds them to their time.
The tests are read only after both have been forked off, so that they are in no memory of the
solution's.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

# Imported here for the keepers that are forked from this process: a sandbox does not show our code.
from eval_gates.sandbox import cgroup, code_runner, grader, linux_syscalls  # noqa: F401
from eval_gates.sandbox.cpu_time import processor_time
from eval_gates.sandbox.framing import FramingError, read_answer, read_message, write_message
from eval_gates.sandbox.launch import BrokenSandboxError, Sandbox, end_children

_SECONDS_TO_LAUNCH = 30.0
MOST_WAITING = 8  # times its limit, of wall clock in all
_SHORTEST_LOOK = 0.05
_OUTCOMES = ("passed", "failed", "timeout", "memory", "crashed")


def judge(task: int, errors: int, report: int, *, parent: int, own_code: str) -> NoReturn:
    """Judge one program in this process, which is a fork for nothing else.

    Args:
        task: a file with two messages: the settings, and ``{"solution": str, "entry_point": str,
            "test": str}``.
        errors: becomes standard error.
        report: takes ``{"begun": true}`` once the sandboxes stand, then ``{"outcome": str,
            "detail": str}``; or ``{"broken": str}`` where nothing is known of the solution: no
            sandbox, or tests that are wrong themselves.
        parent: the process to end with.
        own_code: the folder that holds `eval_gates`.
    """
    linux_syscalls.die_with_parent()
    if os.getppid() != parent:  # it died before we could ask to die with it
        os._exit(1)
    os.dup2(task, 0)
    os.dup2(errors, 2)
    os.close(task)
    os.close(errors)
    os.set_inheritable(report, False)
    settings = read_message(0)
    linux_syscalls.adopt_orphans()
    _alarm(_SECONDS_TO_LAUNCH, lambda: _finish(report, broken="the sandbox did not start in time"))
    orders = settings["orders"]
    try:
        # Keepers, solver and grader keep standard error and their pipes, and close everything else.
        solution = Sandbox(settings["solver"], own_code)
        pipes = (solution.requests, solution.answers, solution.notices)
        tests = Sandbox(settings["grader"], own_code, pipes)
        solution.begin({**orders, "role": "solver"})
        tests.begin({**orders, "role": "grader"})
    except (OSError, BrokenSandboxError) as error:
        _finish(report, broken=str(error))
    solution.hand_over()
    linux_syscalls.keep_others_out()  # only now: its children had to be within reach until here
    write_message(report, {"begun": True})
    _Grading(solution, tests, settings, report).run()


class _Grading:
    """One program's way to its outcome."""

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
        """Hand the task to the grader, and report its verdict."""
        task = read_message(0)
        self._started = time.monotonic()
        _alarm(self._seconds, self._check_time)
        try:
            write_message(self._tests.requests, task)
            verdict = read_answer(self._tests.answers, self._tests.notices)
        except (OSError, EOFError):
            self._finish(*self._ending_of_the_grader())
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
        if outcome in ("failed", "crashed") and cgroup.killed_for_memory(self._group):
            outcome, detail = "memory", "the memory limit was reached"
        self._finish(outcome, detail)

    def _ending_of_the_grader(self) -> tuple[str, str]:
        """Outcome and detail where the grader ended without a verdict."""
        told = "its answers took too much to be judged"
        try:
            notice = read_message(self._tests.notices)
            status, memory = int(notice["status"]), bool(notice["memory"])
        except (EOFError, FramingError, KeyError):  # its keeper was killed
            return "crashed", told
        if memory:
            return "memory", told
        return ("timeout" if status == -signal.SIGXCPU else "crashed"), told

    def _check_time(self) -> None:
        """The time is up, but for what the program had to wait for a processor that others had."""
        passed = time.monotonic() - self._started
        try:
            processor = processor_time()
        except BaseException:
            self._finish("timeout", f"still running after {passed:.3g} s")
        left = self._seconds - passed + processor.waited
        starved = (left > 0 or processor.runnable) and processor.used < self._seconds
        if starved and passed < MOST_WAITING * self._seconds:
            _alarm(max(left, _SHORTEST_LOOK * self._seconds), self._check_time)
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
