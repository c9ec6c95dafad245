"""The judge's side of the sandbox: starts it, calls the solution's function, ends it."""

from __future__ import annotations

import builtins
import os
import select
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from eval_gates.sandbox import bubblewrap, cgroup, keeper, namespaces
from eval_gates.sandbox.messages import (
    LARGEST_MESSAGE_BYTES,
    MessageError,
    MessageReader,
    read_message,
    write_message,
)
from eval_gates.sandbox.values import decode, encode

_SECONDS_TO_END = 5.0
_PATIENCE = 0.05
_MOST_ITEMS = 1_024  # of an iterator, fetched at once
# By these Python ends loops and generators, quietly; the others that do are no Exception.
_ENDS = frozenset({"StopIteration", "StopAsyncIteration", "GeneratorExit"})


class BrokenSandboxError(Exception):
    """The sandbox could not be made; nothing is known of the solution."""


class LostSolutionError(BaseException):
    """The solution's process is gone or talks nonsense.

    Not an Exception: a test that expects one must not take this for it.
    """


class Candidate:
    """The solution's function, as the tests call it.

    Attributes:
        status: how the solver's process ended, as an exit status or a negative signal; None while
            it lives.
        lost: why there will be no more answers, once that is so.
        out_of_memory: whether it met its memory limit.
        trace: the last exception in the solution, as Python would print it.
    """

    def __init__(self, settings: dict[str, Any], own_code: str) -> None:
        self.status: int | None = None
        self.lost = ""
        self.out_of_memory = False
        self.trace = ""
        self._group: str = settings["cgroup"]
        self._raised: list[BaseException] = []
        requests, self._requests = os.pipe()
        self._answers, answers = os.pipe()
        lifeline, self._lifeline = os.pipe()
        self._notices, notices = os.pipe()
        theirs = (requests, answers, lifeline, notices)
        self._ours = (self._requests, self._answers, self._lifeline, self._notices)
        _launch(settings, own_code, theirs)
        for end in theirs:
            os.close(end)
        sandboxed = settings["kind"] != "none"
        self._begin({**settings["orders"], "become": _users(settings), "filter": sandboxed})

    def load(self, solution: str, entry_point: str) -> None:
        """Run the solution's code.

        Raises:
            LostSolutionError: it raised something, or did not get to its end.
        """
        error = self._raised_in(self._ask({"solution": solution, "entry_point": entry_point}))
        if error is not None:
            self._lose(self.trace or repr(error))

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call the function in the sandbox; returns a copy of its answer, or raises as it did.

        Of an iterator the items are copies, asked for as the test goes on.

        Whatever else goes wrong here is the end of the solution, and of nothing that a test could
        take for an exception of its function.

        Raises:
            LostSolutionError: there is no answer.
        """
        with self._at_its_peril():
            reply = self._ask(
                {
                    "arguments": [encode(item) for item in arguments],
                    "named": {name: encode(item) for name, item in named.items()},
                }
            )
            error = self._raised_in(reply)
            if error is None:
                fetched = "iterator" in reply
                value = self._items(reply["iterator"]) if fetched else decode(reply["value"])
        if error is not None:
            raise error
        return value

    def _items(self, number: Any) -> Iterator[Any]:
        """What an iterator of the solution's yields, fetched when a test asks for it."""
        most, ended = 1, False
        while not ended:
            with self._at_its_peril():
                reply = self._ask({"of": number, "most": most})
                items, ended = list(decode(reply["items"])), bool(reply["ended"])
                error = self._raised_in(reply)
            yield from items
            if error is not None:
                raise error
            most = min(2 * most, _MOST_ITEMS)

    @contextmanager
    def _at_its_peril(self) -> Iterator[None]:
        try:
            yield
        except LostSolutionError:
            raise
        except MemoryError:
            self.out_of_memory = True
            self._lose("the answer takes too much memory")
        except BaseException as error:
            self._lose(f"the answer is malformed: {type(error).__name__}: {error}")

    def has_raised(self, error: BaseException) -> bool:
        """Whether `error` came from the solution and not from the tests themselves."""
        return any(error is one for one in self._raised)

    @property
    def faultless(self) -> bool:
        """Whether every call was answered with a value."""
        return not self._raised and not self.lost

    def end(self) -> None:
        """End every process of the sandbox and wait until they are gone."""
        for end in self._ours:
            os.close(end)
        started = time.monotonic()
        while time.monotonic() - started < _SECONDS_TO_END:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                if time.monotonic() - started > _PATIENCE:  # it was to end by itself
                    _kill_children()
                time.sleep(0.001)

    def _begin(self, orders: dict[str, Any]) -> None:
        try:
            write_message(self._requests, orders)
        except OSError:
            orders = {}  # its notice says why
        try:
            notice = read_message(self._notices)
        except (EOFError, MessageError):
            raise BrokenSandboxError("") from None
        if "broken" in notice:
            raise BrokenSandboxError(notice["broken"])

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        if self.lost:
            raise LostSolutionError(self.lost)
        try:
            write_message(self._requests, request)
        except OSError:
            self._hear_ending()
        return self._receive()

    def _receive(self) -> dict[str, Any]:
        """Wait for an answer, or for the solver's end if that comes first."""
        reader = MessageReader(LARGEST_MESSAGE_BYTES)
        ends = select.poll()
        ends.register(self._answers, select.POLLIN)
        ends.register(self._notices, select.POLLIN)
        try:
            while not reader.complete:
                ready = {descriptor for descriptor, _ in ends.poll()}
                if self._answers in ready:
                    reader.take(os.read(self._answers, reader.wanted))
                else:
                    self._hear_ending()
            reply = reader.content()
        except EOFError:
            self._hear_ending()
        except MessageError as error:
            self._lose(str(error))
        if not isinstance(reply, dict):
            self._lose("the answer is malformed")
        return reply

    def _hear_ending(self) -> NoReturn:
        try:
            notice = read_message(self._notices)
            self.status = int(notice["status"])
            self.out_of_memory = bool(notice["memory"])
        except (EOFError, MessageError, KeyError):  # the keeper was killed, or it failed
            self.status = -signal.SIGKILL
        self.out_of_memory |= cgroup.killed_for_memory(self._group)
        self._lose("the solution's process has ended")

    def _lose(self, why: str) -> NoReturn:
        self.lost = why or "no reason given"
        raise LostSolutionError(why)

    def _raised_in(self, reply: dict[str, Any]) -> BaseException | None:
        """The solution's exception, if there was one, as the nearest built-in class.

        Raises:
            LostSolutionError: it is one by which Python itself ends a loop, a generator or a
                program, which a test would not see as an error.
        """
        if "raised" not in reply:
            return None
        raised = reply["raised"]
        kinds, text, self.trace = raised["kinds"], str(raised["text"]), str(raised["trace"])
        known = [getattr(builtins, kind, None) for kind in kinds]
        if MemoryError in known:
            self.out_of_memory = True
            self._lose("the memory limit was reached")
        if Exception not in known or not _ENDS.isdisjoint(kinds):
            self._lose(self.trace)
        error = _build(known, text)
        self._raised.append(error)
        return error


def _build(known: list[Any], text: str) -> BaseException:
    for kind in known:
        if isinstance(kind, type) and issubclass(kind, BaseException):
            try:
                return kind(text)
            except TypeError:  # it wants more than a text, as UnicodeDecodeError does
                continue
    return Exception(text)


def _launch(
    settings: dict[str, Any],
    own_code: str,
    theirs: tuple[int, int, int, int],
) -> None:
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
        keeper.keep(*theirs)

    if kind == "namespaces":
        namespaces.launch(
            view,
            proc=settings["proc"],
            group=settings["cgroup"],
            keep=keep,
            fail=lambda why: _tell(theirs[3], why),
        )
    elif os.fork() == 0:
        keep()


def _users(settings: dict[str, Any]) -> list[int]:
    """Whom the keeper becomes, before any of the solution's code runs."""
    if settings["kind"] == "namespaces":
        return [namespaces.NOBODY]  # as mapped
    if settings["kind"] == "bubblewrap" and not settings["user_namespace"]:
        return [namespaces.own_user(), namespaces.NOBODY]
    return []


def _tell(notices: int, why: str) -> None:
    write_message(notices, {"broken": why})


def _kill_children() -> None:
    """Kill our children; what they leave becomes ours and is killed on the next round."""
    me = str(os.getpid())
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            if path.read_text().rpartition(")")[2].split()[1] == me:
                os.kill(int(path.parent.name), signal.SIGKILL)
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # it has ended, or is bubblewrap's own with the rights of root
