"""Runs the problem's untrusted tests against a solution in another sandbox."""

from __future__ import annotations

import linecache
import resource
import signal
import sys
import traceback
from os import _exit

from eval_gates.sandbox.framing import read_message, write_message
from eval_gates.sandbox.solution_proxy import SolutionProxy

TYPE_CHECKING = False  # importing typing would slow down each start in bubblewrap
if TYPE_CHECKING:
    from typing import Any, NoReturn

MIN_GRADER_BYTES = 256 * 2**20
_SPARE_SECONDS = 1
_OPEN_FILES = 64
_TESTS = "<test>"


def grade(
    requests: int, answers: int, orders: dict[str, Any], calls: int, replies: int, notices: int
) -> NoReturn:
    """Read one task, run its tests, write the verdict.

    Args:
        requests: ``{"solution": str, "entry_point": str, "test": str}``.
        answers: ``{"outcome": str, "detail": str}``, or ``{"broken": str}`` for wrong tests.
        orders: as in :func:`.code_runner.serve`.
        calls: pipe to the code runner.
        replies: pipe from the code runner.
        notices: pipe from the code runner's init, with its exit status.
    """
    sys.argv = [""]
    sys.path[:] = [*(p for p in sys.path[1:] if p), orders["packages"]]
    _limit_resources(orders)
    task = read_message(requests)
    candidate = SolutionProxy(calls, replies, notices)
    write_message(answers, _run_tests(candidate, task))
    _exit(0)


def _limit_resources(orders: dict[str, Any]) -> None:
    for kind, amount in (
        (resource.RLIMIT_AS, max(orders["memory_bytes"], MIN_GRADER_BYTES)),
        (resource.RLIMIT_NPROC, orders["processes"]),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, _OPEN_FILES),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_CPU, orders["seconds"] + _SPARE_SECONDS),
    ):
        hard = resource.getrlimit(kind)[1]
        amount = amount if hard == resource.RLIM_INFINITY else min(amount, hard)
        resource.setrlimit(kind, (amount, amount))


def _run_tests(candidate: SolutionProxy, task: dict[str, Any]) -> dict[str, str]:
    try:
        code = compile(task["test"], _TESTS, "exec")
    except (SyntaxError, ValueError) as error:
        return {"broken": f"the problem's test is not Python: {error}"}
    _remember_source(task["test"])
    try:
        candidate.load(task["solution"], task["entry_point"])
        exec(code, {"__name__": "test", task["entry_point"]: candidate})  # noqa: S102
    except BaseException as error:
        return _failure_verdict(candidate, error)
    if candidate.lost:  # a test that catches everything continued without answers
        return _failure_verdict(candidate, None)
    return {"outcome": "passed", "detail": ""}


def _failure_verdict(candidate: SolutionProxy, error: BaseException | None) -> dict[str, str]:
    # After a failed call, a name may be missing because its answer is.
    if isinstance(error, NameError) and candidate.faultless:
        return {"broken": f"the problem's test uses a name that is not defined: {error}"}
    if candidate.out_of_memory or isinstance(error, MemoryError):
        return {"outcome": "memory", "detail": "the memory limit was reached"}
    if candidate.status is not None:
        outcome, detail = _describe_exit(candidate.status)
        return {"outcome": outcome, "detail": detail}
    if candidate.lost:
        return {"outcome": "failed", "detail": candidate.lost}
    if error is not None and candidate.has_raised(error):
        return {"outcome": "failed", "detail": candidate.trace}
    return {"outcome": "failed", "detail": _trace(error)}


def _describe_exit(status: int) -> tuple[str, str]:
    if status == -signal.SIGXCPU:
        return "timeout", "the limit of CPU time was reached"
    if status < 0:
        return "crashed", f"ended by {signal.Signals(-status).name}"
    return "failed", f"exited with status {status} before the tests ended"


def _remember_source(text: str) -> None:
    linecache.cache[_TESTS] = (len(text), None, text.splitlines(keepends=True), _TESTS)


def _trace(error: BaseException | None) -> str:
    if error is None:
        return ""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename != _TESTS:
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames))
