"""Proxy of the solution's function, for tests in another sandbox."""

from __future__ import annotations

import builtins
import signal
from contextlib import contextmanager

from eval_gates.sandbox.framing import FramingError, read_answer, read_message, write_message
from eval_gates.sandbox.value_codec import decode, encode

TYPE_CHECKING = False  # importing typing would slow down each start in bubblewrap
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, NoReturn

_MAX_ITEMS = 1_024  # of an iterator, per request
# Python ends loops and generators silently by these; the others that do are no Exception.
_ENDS = frozenset({"StopIteration", "StopAsyncIteration", "GeneratorExit"})


class SolutionDiedError(BaseException):
    """The solution's process ended; no Exception, which a test may catch."""


class SolutionProxy:
    """The solution's function, as the tests call it.

    Attributes:
        status: exit status or negative signal of the code runner; None while it runs.
        lost: why there are no more answers; '' before.
        out_of_memory: whether it reached its memory limit.
        trace: the solution's last exception, formatted.
    """

    def __init__(self, requests: int, answers: int, notices: int) -> None:
        self.status: int | None = None
        self.lost = ""
        self.out_of_memory = False
        self.trace = ""
        self._raised: list[BaseException] = []
        self._requests, self._answers, self._notices = requests, answers, notices

    def load(self, solution: str, entry_point: str) -> None:
        error = self._read_exception(
            self._request({"solution": solution, "entry_point": entry_point})
        )
        if error is not None:
            self._give_up(self.trace or repr(error))

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call the function; other failures than its exceptions are SolutionDiedErrors."""
        with self._losing_on_error():
            reply = self._request(
                {
                    "arguments": [encode(item) for item in arguments],
                    "named": {name: encode(item) for name, item in named.items()},
                }
            )
            error = self._read_exception(reply)
            if error is None:
                fetched = "iterator" in reply
                value = self._items(reply["iterator"]) if fetched else decode(reply["value"])
        if error is not None:
            raise error
        return value

    def _items(self, number: Any) -> Iterator[Any]:
        most, ended = 1, False
        while not ended:
            with self._losing_on_error():
                reply = self._request({"of": number, "most": most})
                items, ended = list(decode(reply["items"])), bool(reply["ended"])
                error = self._read_exception(reply)
            yield from items
            if error is not None:
                raise error
            most = min(2 * most, _MAX_ITEMS)

    @contextmanager
    def _losing_on_error(self) -> Iterator[None]:
        try:
            yield
        except SolutionDiedError:
            raise
        except MemoryError:
            self.out_of_memory = True
            self._give_up("the answer takes too much memory")
        except BaseException as error:
            self._give_up(f"the answer is malformed: {type(error).__name__}: {error}")

    def has_raised(self, error: BaseException) -> bool:
        return any(error is raised for raised in self._raised)

    @property
    def faultless(self) -> bool:
        return not self._raised and not self.lost

    def _request(self, request: dict[str, Any]) -> dict[str, Any]:
        if self.lost:
            raise SolutionDiedError(self.lost)
        try:
            write_message(self._requests, request)
        except OSError:
            self._read_ending()
        return self._receive()

    def _receive(self) -> dict[str, Any]:
        try:
            reply = read_answer(self._answers, self._notices)
        except EOFError:
            self._read_ending()
        except FramingError as error:
            self._give_up(str(error))
        if not isinstance(reply, dict):
            self._give_up("the answer is malformed")
        return reply

    def _read_ending(self) -> NoReturn:
        try:
            notice = read_message(self._notices)
            self.status = int(notice["status"])
            self.out_of_memory = bool(notice["memory"])
        except (EOFError, FramingError, KeyError):  # the init was killed, or it failed
            self.status = -signal.SIGKILL
        self._give_up("the solution's process has ended")

    def _give_up(self, why: str) -> NoReturn:
        self.lost = why or "no reason given"
        raise SolutionDiedError(why)

    def _read_exception(self, reply: dict[str, Any]) -> BaseException | None:
        if "raised" not in reply:
            return None
        raised = reply["raised"]
        kinds, text, self.trace = raised["kinds"], str(raised["text"]), str(raised["trace"])
        known = [getattr(builtins, kind, None) for kind in kinds]
        if MemoryError in known:
            self.out_of_memory = True
            self._give_up("the memory limit was reached")
        if Exception not in known or not _ENDS.isdisjoint(kinds):
            self._give_up(self.trace)
        error = _build_exception(known, text)
        self._raised.append(error)
        return error


def _build_exception(known: list[Any], text: str) -> BaseException:
    for kind in known:
        if isinstance(kind, type) and issubclass(kind, BaseException):
            try:
                return kind(text)
            except TypeError:  # it needs more than a string, as UnicodeDecodeError does
                continue
    return Exception(text)
