"""The first process in the sandbox: sheds its privileges, starts the solver, ends it all.

Where it is pid 1 of a pid namespace, nobody inside can signal or stop it, and its end is the end
of every process inside, wherever they have fled to. It ends when the solver does, when the judge
closes the lifeline (by dying, too), or when the processes together take too much memory.
"""

from __future__ import annotations

import os
import select
import signal

from eval_gates.sandbox import linux_syscalls
from eval_gates.sandbox.framing import read_message, write_message

TYPE_CHECKING = False  # typing would be a good part of a solver's start in bubblewrap
if TYPE_CHECKING:
    from typing import Any, NoReturn

_LOOK_MILLISECONDS = 50
_MOST_FILES = 1_024  # empty ones take memory, too, and no limit on bytes counts it


def keep(requests: int, answers: int, lifeline: int, notices: int, *more: int) -> NoReturn:
    """Keep one solver or grader until its end; the judge learns of both ends by `notices`.

    Args:
        requests: where orders come from, and then the solver's calls.
        answers: where the solver writes.
        lifeline: ends when the judge does.
        notices: ``{"started": true}``, then ``{"status": int, "memory": bool}`` (as `waitpid`
            gives it, decoded), or ``{"broken": str}`` at any time.
        more: a grader's pipes to the solver.
    """
    try:
        _be_deaf()
        _close_all_but(requests, answers, lifeline, notices, *more)
        orders = read_message(requests)
        alone = os.getpid() == 1
        _begin_session()
        linux_syscalls.shed_privileges(orders["become"])
        if orders["filter"]:
            linux_syscalls.filter_calls()
        _forget_standard_streams()
        if not alone:
            os.chdir(orders["folder"])
        write_message(notices, {"started": True})
        child = os.fork()
        if child == 0:
            _close_all_but(requests, answers, *more)
            os.setpgid(0, 0)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            _run(requests, answers, orders, more)
        _begin_group(child)
        for end in (requests, answers, *more):
            os.close(end)
        ending = _watch(child, lifeline, orders["memory_bytes"] if alone else None)
        if not alone:
            _end_group(child)
        write_message(notices, ending)
    except BaseException as error:
        tell_broken(notices, error)
    os._exit(0)


def _run(requests: int, answers: int, orders: dict[str, Any], more: tuple[int, ...]) -> NoReturn:
    """Become what the orders say."""
    if orders["role"] == "grader":
        from eval_gates.sandbox.grader import grade

        grade(requests, answers, orders, *more)
    from eval_gates.sandbox.code_runner import serve

    serve(requests, answers, orders)


def _be_deaf() -> None:
    """Drop what Python, or the judge that we were, listens to.

    Those inside could signal pid 1 by it; all else the kernel keeps from them.
    """
    signal.setitimer(signal.ITIMER_REAL, 0)
    for number in (signal.SIGINT, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)


def tell_broken(notices: int, error: BaseException) -> None:
    """Tell the judge why there is no sandbox; if it is gone as well, there is nobody to tell."""
    try:
        write_message(notices, {"broken": f"{type(error).__name__}: {error}"})
    except OSError:
        os._exit(1)


def _forget_standard_streams() -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    os.close(nothing)


def _close_all_but(*ends: int) -> None:
    """Close every descriptor but these and the standard ones."""
    last = 2
    for end in (*sorted(ends), 256):
        os.closerange(last + 1, end)
        last = end


def _watch(child: int, lifeline: int, memory_bytes: int | None) -> dict[str, Any]:
    ends = select.poll()
    ends.register(lifeline, select.POLLIN)
    ends.register(os.pidfd_open(child), select.POLLIN)
    while True:
        judge_gone = any(descriptor == lifeline for descriptor, _ in ends.poll(_LOOK_MILLISECONDS))
        if judge_gone:
            return {"status": -signal.SIGKILL, "memory": False}
        ended = _reap(child)
        if ended is not None:
            return {"status": ended, "memory": False}
        if memory_bytes is not None and (_memory_of_all() > memory_bytes or _files() > _MOST_FILES):
            return {"status": -signal.SIGKILL, "memory": True}


def _reap(child: int) -> int | None:
    """Collect whoever has ended; the child's status once it is among them."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return None
        if pid == child:
            return os.waitstatus_to_exitcode(status)
        if pid == 0:
            return None


def _memory_of_all() -> int:
    """Resident bytes of several processes together; 0 for one, which its own limit binds."""
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


def _files() -> int:
    """Files and folders in the sandbox's own folder, which is a file system in memory."""
    found = os.statvfs(".")
    return found.f_files - found.f_ffree


def _processes() -> list[str]:
    try:
        names = os.listdir("/proc")  # noqa: PTH208 - pathlib takes as long to import as all else
    except FileNotFoundError:  # a container did not allow one
        return []
    return [name for name in names if name.isdigit()]


def _begin_session() -> None:
    """The kernel shares processors out by session, then within it: many share with their own."""
    try:
        os.setsid()
    except PermissionError:  # bubblewrap has made one
        return


def _begin_group(child: int) -> None:
    """Give the child a group of its own now; it does the same, whoever comes first."""
    try:
        os.setpgid(child, child)
    except (ProcessLookupError, PermissionError):  # it has ended, or is another program by now
        return


def _end_group(child: int) -> None:
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:
        return
