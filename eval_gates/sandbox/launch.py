"""A sandbox with one process in it, as the process outside starts and ends it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

from eval_gates.sandbox import bubblewrap, namespaces, sandbox_init
from eval_gates.sandbox.framing import FramingError, read_message, write_message

_SECONDS_TO_END = 5.0
_PATIENCE = 0.05
_SHORT_WAIT = 0.002


class BrokenSandboxError(Exception):
    """The sandbox could not be made; nothing is known of the solution."""


class Sandbox:
    """A sandbox that is being started; `begin` waits until it stands.

    Args:
        settings: `kind` and the other fields of :class:`~.isolation.Isolation`, `view`, `cgroup`.
        own_code: the folder that holds `eval_gates`.
        more: descriptors that the process inside gets beside its own pipes.

    Attributes:
        requests: where to write what the process inside reads.
        answers: where to read what it writes.
        notices: where its keeper writes how it began and ended.
    """

    def __init__(self, settings: dict[str, Any], own_code: str, more: Iterable[int] = ()) -> None:
        self._settings = settings
        requests, self.requests = os.pipe()
        self.answers, answers = os.pipe()
        lifeline, self._lifeline = os.pipe()
        self.notices, notices = os.pipe()
        theirs = (requests, answers, lifeline, notices)
        _launch(settings, own_code, (*theirs, *more))
        for end in theirs:
            os.close(end)

    def begin(self, orders: dict[str, Any]) -> None:
        """Give the keeper its orders, and wait until the sandbox stands.

        Raises:
            BrokenSandboxError: it could not be made.
        """
        orders = {
            **orders,
            "become": _users(self._settings),
            "filter": self._settings["kind"] != "none",
        }
        try:
            write_message(self.requests, orders)
        except OSError:
            orders = {}  # its notice says why
        try:
            notice = read_message(self.notices)
        except (EOFError, FramingError):
            raise BrokenSandboxError("") from None
        if "broken" in notice:
            raise BrokenSandboxError(notice["broken"])

    def hand_over(self) -> None:
        """Close the pipes to the process inside: another process has them."""
        for end in (self.requests, self.answers, self.notices):
            os.close(end)

    def end(self) -> None:
        """Tell the keeper to end every process of the sandbox."""
        os.close(self._lifeline)


def end_children() -> None:
    """Wait until all children are gone, whose sandboxes were told to end."""
    started = time.monotonic()
    while time.monotonic() - started < _SECONDS_TO_END:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            is_late = time.monotonic() - started > _PATIENCE  # they were to end by themselves
            if is_late:
                _kill_children()
            time.sleep(_PATIENCE if is_late else _SHORT_WAIT)


def _launch(settings: dict[str, Any], own_code: str, theirs: tuple[int, ...]) -> None:
    kind, view = settings["kind"], settings["view"]
    if kind == "bubblewrap":
        line = bubblewrap.command(
            settings["program"],
            view,
            own_code,
            theirs,
            proc=settings["proc"],
            host_named=settings["host_named"],
            user_namespace=settings["user_namespace"],
            nested_forbidden=settings["nested_forbidden"],
        )
        bubblewrap.launch(line, theirs, settings["cgroup"])
        return

    def keep() -> NoReturn:
        sandbox_init.keep(*theirs)

    if kind == "namespaces":
        namespaces.launch(
            view,
            proc=settings["proc"],
            group=settings["cgroup"],
            keep=keep,
            fail=lambda why: write_message(theirs[3], {"broken": why}),
        )
    elif os.fork() == 0:
        keep()


def _users(settings: dict[str, Any]) -> list[int]:
    """Whom the keeper becomes, before any code runs that is not ours."""
    if settings["kind"] == "namespaces":
        return [namespaces.NOBODY]  # as mapped
    if settings["kind"] == "bubblewrap" and not settings["user_namespace"]:
        return [namespaces.own_user(), namespaces.NOBODY]
    return []


def _kill_children() -> None:
    """Kill our children; what they leave becomes ours and is killed on the next round."""
    me = str(os.getpid())
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            if path.read_text().rpartition(")")[2].split()[1] == me:
                os.kill(int(path.parent.name), signal.SIGKILL)
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # it has ended, or is bubblewrap's own with the rights of root
