"""The solution's function, as the tests call it: a proxy for the process in the other sandbox."""

from __future__ import annotations

import builtins
import signal
from contextlib import contextmanager

from eval_gates.sandbox.framing import FramingError, read_answer, read_message, write_message
from eval_gates.sandbox.value_codec import decode, encode

TYPE_CHECKING = False  # typing would be a good part of a start in bubblewrap
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, NoReturn

_MOST_ITEMS = 1_024  # of an iterator, fetched at once
# By these Python ends loops and generators, quietly; the others that do are no Exception.
_ENDS = frozenset({"StopIteration", "StopAsyncIteration", "GeneratorExit"})


class SolutionDiedError(BaseException):
    """The solution's process is gone or talks nonsense.

    Not an Exception: a test that expects one must not take this for it.
    """


class SolutionProxy:
    """The solution's function, as the tests call it.

    Attributes:
        status: how the solver's process ended, as an exit status or a negative signal; None while
            it lives.
        lost: why there will be no more answers, once that is so.
        out_of_memory: whether it met its memory limit.
        trace: the last exception in the solution, as Python would print it.
    """

    def __init__(self, requests: int, answers: int, notices: int) -> None:
        self.status: int | None = None
        self.lost = ""
        self.out_of_memory = False
        self.trace = ""
        self._raised: list[BaseException] = []
        self._requests, self._answers, self._notices = requests, answers, notices

    def load(self, solution: str, entry_point: str) -> None:
        """Run the solution's code.

        Raises:
            SolutionDiedError: it raised something, or did not get to its end.
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
            SolutionDiedError: there is no answer.
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
        except SolutionDiedError:
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

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        if self.lost:
            raise SolutionDiedError(self.lost)
        try:
            write_message(self._requests, request)
        except OSError:
            self._hear_ending()
        return self._receive()

    def _receive(self) -> dict[str, Any]:
        """Wait for an answer, or for the solver's end if that comes first."""
        try:
            reply = read_answer(self._answers, self._notices)
        except EOFError:
            self._hear_ending()
        except FramingError as error:
            self._lose(str(error))
        if not isinstance(reply, dict):
            self._lose("the answer is malformed")
        return reply

    def _hear_ending(self) -> NoReturn:
        try:
            notice = read_message(self._notices)
            self.status = int(notice["status"])
            self.out_of_memory = bool(notice["memory"])
        except (EOFError, FramingError, KeyError):  # the keeper was killed, or it failed
            self.status = -signal.SIGKILL
        self._lose("the solution's process has ended")

    def _lose(self, why: str) -> NoReturn:
        self.lost = why or "no reason given"
        raise SolutionDiedError(why)

    def _raised_in(self, reply: dict[str, Any]) -> BaseException | None:
        """The solution's exception, if there was one, as the nearest built-in class.

        Raises:
            SolutionDiedError: it is one by which Python itself ends a loop, a generator or a
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
