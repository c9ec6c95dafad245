"""Judges one program: runs its tests against a solution that runs in a sandbox of its own.

Forked by :mod:`eval_gates.sandbox.fork_server` from a bare interpreter. The tests are read only
after the sandbox has been forked off, so that they are in no memory of the solution's.
"""

from __future__ import annotations

import math
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

from eval_gates.sandbox import kernel
from eval_gates.sandbox.candidate import BrokenSandboxError, Candidate
from eval_gates.sandbox.messages import read_message, write_message
from eval_gates.sandbox.processor_time import processor_time

_OWN_MEMORY = 256 * 2**20
_SECONDS_TO_LAUNCH = 30.0
_SPARE_SECONDS = 1
_TESTS = "<test>"
MOST_WAITING = 8  # times its limit, of wall clock in all
_SHORTEST_LOOK = 0.05


def judge(task: int, errors: int, report: int, *, parent: int, own_code: str) -> NoReturn:
    """Judge one program in this process, which is a fork for nothing else.

    Args:
        task: a file with two messages: the settings, and ``{"solution": str, "entry_point": str,
            "test": str}``.
        errors: becomes standard error.
        report: takes ``{"begun": true}`` once the sandbox stands, then ``{"outcome": str,
            "detail": str}``; or ``{"broken": str}`` where nothing is known of the solution: no
            sandbox, or tests that are wrong themselves.
        parent: the process to end with.
        own_code: the folder that holds `eval_gates`.
    """
    kernel.die_with_parent()
    if os.getppid() != parent:  # it died before we could ask to die with it
        os._exit(1)
    os.dup2(task, 0)
    os.dup2(errors, 2)
    os.close(task)
    os.close(errors)
    os.set_inheritable(report, False)
    settings = read_message(0)
    kernel.adopt_orphans()
    _alarm(_SECONDS_TO_LAUNCH, lambda: _finish(report, broken="the sandbox did not start in time"))
    try:
        # Keeper and solver keep standard error and their pipes, and close everything else.
        candidate = Candidate(settings, own_code)
    except (OSError, BrokenSandboxError) as error:
        _finish(report, broken=str(error))
    kernel.keep_others_out()  # only now: its children had to be within reach until here
    write_message(report, {"begun": True})
    _Judgement(candidate, settings, report).run()


class _Judgement:
    """One program's way to its outcome."""

    def __init__(self, candidate: Candidate, settings: dict[str, Any], report: int) -> None:
        self._candidate = candidate
        self._report = report
        self._seconds: float = settings["wall_seconds"]
        self._started = time.monotonic()
        self._packages: list[str] = settings["packages"]
        self._limit(settings["orders"])

    def run(self) -> NoReturn:
        """Load the solution, run the tests, report."""
        task = read_message(0)
        self._started = time.monotonic()
        _alarm(self._seconds, self._check_time)
        try:
            self._candidate.load(task["solution"], task["entry_point"])
            self._test(task)
        except BaseException as error:
            self._finish_with(error)
        if self._candidate.lost:  # a test that catches everything went on without answers
            self._finish_with(None)
        self._finish("passed", "")

    def _test(self, task: dict[str, Any]) -> None:
        sys.path += self._packages
        try:
            code = compile(task["test"], _TESTS, "exec")
        except (SyntaxError, ValueError) as error:
            self._report_broken(f"the problem's test is not Python: {error}")
        _remember_source(task["test"])
        exec(code, {"__name__": "test", task["entry_point"]: self._candidate})  # noqa: S102

    def _limit(self, orders: dict[str, Any]) -> None:
        """The judge has limits too: answers may be built to be costly to compare."""
        memory = max(orders["memory_bytes"], _OWN_MEMORY)
        for kind, amount in (
            (resource.RLIMIT_AS, memory),
            (resource.RLIMIT_FSIZE, 0),
            (resource.RLIMIT_CORE, 0),
            # An alarm is handled between two steps of Python's, and one step can take an hour.
            (resource.RLIMIT_CPU, orders["seconds"] + _SPARE_SECONDS),
        ):
            hard = resource.getrlimit(kind)[1]
            amount = amount if hard == resource.RLIM_INFINITY else min(amount, hard)
            resource.setrlimit(kind, (amount, hard))

    def _check_time(self) -> None:
        """The time is up, but for what the solution had to wait for a processor that others had."""
        passed = time.monotonic() - self._started
        try:
            processor = processor_time()
        except BaseException:  # in the midst of a test, which might take it for the solution's
            self._finish("timeout", f"still running after {passed:.3g} s")
        left = self._seconds - passed + processor.waited
        starved = (left > 0 or processor.runnable) and processor.used < self._seconds
        if starved and passed < MOST_WAITING * self._seconds:
            _alarm(max(left, _SHORTEST_LOOK * self._seconds), self._check_time)
        else:
            self._finish("timeout", f"still running after {passed:.3g} s")

    def _finish_with(self, error: BaseException | None) -> NoReturn:
        candidate = self._candidate
        # After a failed call, a name may be missing because its answer is.
        if isinstance(error, NameError) and candidate.faultless:
            self._report_broken(f"the problem's test uses a name that is not defined: {error}")
        if candidate.out_of_memory or isinstance(error, MemoryError):
            self._finish("memory", "the memory limit was reached")
        if candidate.status is not None:
            self._finish(*_ending(candidate.status))
        if candidate.lost:
            self._finish("failed", candidate.lost)
        if error is not None and candidate.has_raised(error):
            self._finish("failed", candidate.trace)
        self._finish("failed", _trace(error))

    def _report_broken(self, why: str) -> NoReturn:
        self._candidate.end()
        _finish(self._report, broken=why)

    def _finish(self, outcome: str, detail: str) -> NoReturn:
        signal.setitimer(signal.ITIMER_REAL, 0)
        self._candidate.end()
        _finish(self._report, outcome=outcome, detail=detail)


def _ending(status: int) -> tuple[str, str]:
    """Outcome and detail of a solver that ended by itself, before the tests had."""
    if status == -signal.SIGXCPU:
        return "timeout", "the limit of processor time was reached"
    if status < 0:
        return "crashed", f"ended by {signal.Signals(-status).name}"
    return "failed", f"left with status {status} before its checks had run to their end"


def _alarm(seconds: float, act: Callable[[], None]) -> None:
    def ring(number: int, frame: FrameType | None) -> None:
        act()

    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, math.ulp(1.0)))


def _finish(report: int, **content: str) -> NoReturn:
    write_message(report, content)
    os._exit(0)


def _remember_source(text: str) -> None:
    """Let tracebacks quote the test's lines."""
    import linecache

    linecache.cache[_TESTS] = (len(text), None, text.splitlines(keepends=True), _TESTS)


def _trace(error: BaseException | None) -> str:
    """The exception as Python would print it, from the test's own frames on."""
    import traceback

    if error is None:
        return ""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename != _TESTS:
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames))
