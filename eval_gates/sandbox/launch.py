"""Start and end of a sandbox, from the outside."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

from eval_gates.sandbox import bubblewrap, namespaces, sandbox_init
from eval_gates.sandbox.framing import FramingError, read_message, write_message

_END_TIMEOUT_S = 5.0
_GRACE_S = 0.05
_POLL_INTERVAL_S = 0.002


class BrokenSandboxError(Exception):
    """The sandbox could not be made; there is no result."""


class Sandbox:
    """Sandbox that is being started; `start` waits until it runs.

    Args:
        settings: the fields of :class:`~.isolation.Isolation`, `view`, `cgroup`.
        more: further descriptors for the inside process.

    Attributes:
        requests: pipe to the inside process.
        answers: pipe from the inside process.
        notices: pipe from its init, with its start and end.
    """

    def __init__(
        self, settings: dict[str, Any], code_folder: str, more: Iterable[int] = ()
    ) -> None:
        self._settings = settings
        requests, self.requests = os.pipe()
        self.answers, answers = os.pipe()
        lifeline, self._lifeline = os.pipe()
        self.notices, notices = os.pipe()
        child_ends = (requests, answers, lifeline, notices)
        _launch(settings, code_folder, (*child_ends, *more))
        for end in child_ends:
            os.close(end)

    def start(self, orders: dict[str, Any]) -> None:
        """Send the init its orders; BrokenSandboxError if there is no sandbox."""
        orders = {
            **orders,
            "become": _users(self._settings),
            "filter": self._settings["kind"] != "none",
        }
        try:
            write_message(self.requests, orders)
        except OSError:
            orders = {}  # its notice has the reason
        try:
            notice = read_message(self.notices)
        except (EOFError, FramingError):
            raise BrokenSandboxError("") from None
        if "broken" in notice:
            raise BrokenSandboxError(notice["broken"])

    def hand_over(self) -> None:
        """Close this process's pipe ends; another process has copies."""
        for end in (self.requests, self.answers, self.notices):
            os.close(end)

    def end(self) -> None:
        os.close(self._lifeline)


def end_children() -> None:
    """Wait until all children have ended, after `end` of their sandboxes."""
    started = time.monotonic()
    while time.monotonic() - started < _END_TIMEOUT_S:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            is_late = time.monotonic() - started > _GRACE_S  # they should have ended by themselves
            if is_late:
                _kill_children()
            time.sleep(_GRACE_S if is_late else _POLL_INTERVAL_S)


def _launch(settings: dict[str, Any], code_folder: str, child_ends: tuple[int, ...]) -> None:
    kind, view = settings["kind"], settings["view"]
    if kind == "bubblewrap":
        line = bubblewrap.command(
            settings["program"],
            view,
            code_folder,
            child_ends,
            proc=settings["proc"],
            host_named=settings["host_named"],
            user_namespace=settings["user_namespace"],
            nested_forbidden=settings["nested_forbidden"],
        )
        bubblewrap.launch(line, child_ends, settings["cgroup"])
        return

    def run_init() -> NoReturn:
        sandbox_init.run_init(*child_ends)

    if kind == "namespaces":
        namespaces.launch(
            view,
            proc=settings["proc"],
            group=settings["cgroup"],
            run_init=run_init,
            fail=lambda why: write_message(child_ends[3], {"broken": why}),
        )
    elif os.fork() == 0:
        run_init()


def _users(settings: dict[str, Any]) -> list[int]:
    if settings["kind"] == "namespaces":
        return [namespaces.NOBODY]  # as mapped
    if settings["kind"] == "bubblewrap" and not settings["user_namespace"]:
        return [namespaces.unused_user_id(), namespaces.NOBODY]
    return []


def _kill_children() -> None:
    me = str(os.getpid())
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            if path.read_text().rpartition(")")[2].split()[1] == me:
                os.kill(int(path.parent.name), signal.SIGKILL)
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # it has ended, or is bubblewrap's own process with root privileges
