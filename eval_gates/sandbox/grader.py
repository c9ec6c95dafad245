"""Runs the problem's tests against a solution that runs in another sandbox.

The tests come with a dataset, so they are untrusted, too. They reach the solution by pipes alone.
"""

from __future__ import annotations

import linecache
import resource
import signal
import sys
import traceback
from os import _exit

from eval_gates.sandbox.framing import read_message, write_message
from eval_gates.sandbox.solution_proxy import SolutionProxy

TYPE_CHECKING = False  # typing would be a good part of a start in bubblewrap
if TYPE_CHECKING:
    from typing import Any, NoReturn

OWN_MEMORY = 256 * 2**20
_SPARE_SECONDS = 1
_OPEN_FILES = 64
_TESTS = "<test>"


def grade(
    requests: int, answers: int, orders: dict[str, Any], calls: int, replies: int, notices: int
) -> NoReturn:
    """Read one task, run its tests, write the verdict.

    Args:
        requests: ``{"solution": str, "entry_point": str, "test": str}``.
        answers: ``{"outcome": str, "detail": str}``, or ``{"broken": str}`` where the tests
            themselves are wrong.
        orders: `seconds`, `memory_bytes`, `processes`, `packages` (a folder).
        calls: where the solver reads.
        replies: where the solver writes.
        notices: where the solver's keeper writes how it ended.
    """
    sys.argv = [""]
    sys.path[:] = [*(p for p in sys.path[1:] if p), orders["packages"]]
    _limit_resources(orders)
    task = read_message(requests)
    candidate = SolutionProxy(calls, replies, notices)
    write_message(answers, _verdict_on(candidate, task))
    _exit(0)


def _limit_resources(orders: dict[str, Any]) -> None:
    """Limit the tests: answers may be built to be costly to compare, and tests may be hostile."""
    for kind, amount in (
        (resource.RLIMIT_AS, max(orders["memory_bytes"], OWN_MEMORY)),
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


def _verdict_on(candidate: SolutionProxy, task: dict[str, Any]) -> dict[str, str]:
    try:
        code = compile(task["test"], _TESTS, "exec")
    except (SyntaxError, ValueError) as error:
        return {"broken": f"the problem's test is not Python: {error}"}
    _remember_source(task["test"])
    try:
        candidate.load(task["solution"], task["entry_point"])
        exec(code, {"__name__": "test", task["entry_point"]: candidate})  # noqa: S102
    except BaseException as error:
        return _verdict_after(candidate, error)
    if candidate.lost:  # a test that catches everything went on without answers
        return _verdict_after(candidate, None)
    return {"outcome": "passed", "detail": ""}


def _verdict_after(candidate: SolutionProxy, error: BaseException | None) -> dict[str, str]:
    # After a failed call, a name may be missing because its answer is.
    if isinstance(error, NameError) and candidate.faultless:
        return {"broken": f"the problem's test uses a name that is not defined: {error}"}
    if candidate.out_of_memory or isinstance(error, MemoryError):
        return {"outcome": "memory", "detail": "the memory limit was reached"}
    if candidate.status is not None:
        outcome, detail = _ending(candidate.status)
        return {"outcome": outcome, "detail": detail}
    if candidate.lost:
        return {"outcome": "failed", "detail": candidate.lost}
    if error is not None and candidate.has_raised(error):
        return {"outcome": "failed", "detail": candidate.trace}
    return {"outcome": "failed", "detail": _trace(error)}


def _ending(status: int) -> tuple[str, str]:
    """Outcome and detail of a solver that ended by itself, before the tests had."""
    if status == -signal.SIGXCPU:
        return "timeout", "the limit of processor time was reached"
    if status < 0:
        return "crashed", f"ended by {signal.Signals(-status).name}"
    return "failed", f"left with status {status} before its checks had run to their end"


def _remember_source(text: str) -> None:
    """Let tracebacks quote the test's lines."""
    linecache.cache[_TESTS] = (len(text), None, text.splitlines(keepends=True), _TESTS)


def _trace(error: BaseException | None) -> str:
    """The exception as Python would print it, from the test's own frames on."""
    if error is None:
        return ""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename != _TESTS:
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames))
