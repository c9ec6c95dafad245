"""First process in the sandbox: sheds privileges, starts the program, ends all processes.

No process inside can stop pid 1, and its end ends all. It ends with the program or the grading
process, or when all processes together exceed the memory limit.
"""

from __future__ import annotations

import os
import select
import signal

from eval_gates.sandbox import linux_syscalls
from eval_gates.sandbox.framing import read_message, write_message

TYPE_CHECKING = False  # importing typing would slow down each start in bubblewrap
if TYPE_CHECKING:
    from typing import Any, NoReturn

_POLL_INTERVAL_MS = 50
_MAX_FILES = 1_024  # empty files take memory that no limit on bytes counts


def run_init(requests: int, answers: int, lifeline: int, notices: int, *more: int) -> NoReturn:
    """Run one code runner or grader, and report its start and end on `notices`.

    Args:
        requests: orders, then the program's calls.
        answers: written by the program.
        lifeline: ends when the grading process ends.
        notices: ``{"started": true}``, then ``{"status": int, "memory": bool}`` (decoded as by
            `waitpid`), or ``{"broken": str}`` at any time.
        more: a grader's pipes to the code runner.
    """
    try:
        _ignore_signals()
        _close_other_descriptors(requests, answers, lifeline, notices, *more)
        orders = read_message(requests)
        alone = os.getpid() == 1
        _start_session()
        linux_syscalls.shed_privileges(orders["become"])
        if orders["filter"]:
            linux_syscalls.filter_calls()
        _redirect_standard_streams()
        if not alone:
            os.chdir(orders["folder"])
        write_message(notices, {"started": True})
        child = os.fork()
        if child == 0:
            _close_other_descriptors(requests, answers, *more)
            os.setpgid(0, 0)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            _run(requests, answers, orders, more)
        _start_group(child)
        for end in (requests, answers, *more):
            os.close(end)
        ending = _watch(child, lifeline, orders["memory_bytes"] if alone else None)
        if not alone:
            _end_group(child)
        write_message(notices, ending)
    except BaseException as error:
        report_broken(notices, error)
    os._exit(0)


def _run(requests: int, answers: int, orders: dict[str, Any], more: tuple[int, ...]) -> NoReturn:
    if orders["role"] == "grader":
        from eval_gates.sandbox.grader import grade

        grade(requests, answers, orders, *more)
    from eval_gates.sandbox.code_runner import serve

    serve(requests, answers, orders)


def _ignore_signals() -> None:
    signal.setitimer(signal.ITIMER_REAL, 0)
    for number in (signal.SIGINT, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)


def report_broken(notices: int, error: BaseException) -> None:
    """Report why there is no sandbox; exit if the grading process has ended."""
    try:
        write_message(notices, {"broken": f"{type(error).__name__}: {error}"})
    except OSError:
        os._exit(1)


def _redirect_standard_streams() -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    os.close(nothing)


def _close_other_descriptors(*ends: int) -> None:
    last = 2
    for end in (*sorted(ends), 256):
        os.closerange(last + 1, end)
        last = end


def _watch(child: int, lifeline: int, memory_bytes: int | None) -> dict[str, Any]:
    ends = select.poll()
    ends.register(lifeline, select.POLLIN)
    ends.register(os.pidfd_open(child), select.POLLIN)
    while True:
        is_orphaned = any(descriptor == lifeline for descriptor, _ in ends.poll(_POLL_INTERVAL_MS))
        if is_orphaned:
            return {"status": -signal.SIGKILL, "memory": False}
        ended = _reap(child)
        if ended is not None:
            return {"status": ended, "memory": False}
        if memory_bytes is not None and (
            _total_memory() > memory_bytes or _count_files() > _MAX_FILES
        ):
            return {"status": -signal.SIGKILL, "memory": True}


def _reap(child: int) -> int | None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return None
        if pid == child:
            return os.waitstatus_to_exitcode(status)
        if pid == 0:
            return None


def _total_memory() -> int:
    page = os.sysconf("SC_PAGE_SIZE")
    others = [name for name in _processes() if name != "1"]
    if len(others) < 2:
        return 0
    total = 0
    for name in others:
        try:
            with open(f"/proc/{name}/statm") as sizes:  # noqa: PTH123
                total += int(sizes.read().split()[1]) * page
        except (OSError, IndexError):  # it has ended
            continue
    return total


def _count_files() -> int:
    found = os.statvfs(".")
    return found.f_files - found.f_ffree


def _processes() -> list[str]:
    try:
        names = os.listdir("/proc")  # noqa: PTH208 - importing pathlib would double the start-up
    except FileNotFoundError:  # a container did not allow one
        return []
    return [name for name in names if name.isdigit()]


def _start_session() -> None:
    try:
        os.setsid()
    except PermissionError:  # bubblewrap has made one
        return


def _start_group(child: int) -> None:
    try:
        os.setpgid(child, child)
    except (ProcessLookupError, PermissionError):  # it has ended, or is another program by now
        return


def _end_group(child: int) -> None:
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:
        return
