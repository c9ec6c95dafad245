"""Messages between the sandbox's processes: a length, then JSON."""

from __future__ import annotations

import json

# Bound here, because a solution may replace a module's functions.
from os import read, write
from select import POLLIN, poll

TYPE_CHECKING = False  # importing typing would slow down each start in bubblewrap
if TYPE_CHECKING:
    from typing import Any

_LENGTH_BYTES = 8
_CHUNK_BYTES = 65_536
MAX_MESSAGE_BYTES = 4 * 2**20

_encode = json.JSONEncoder(check_circular=False).encode
_decode = json.JSONDecoder().decode


class FramingError(Exception):
    """The message is incomplete or malformed."""


def write_message(descriptor: int, content: Any) -> None:
    """Write one complete message; OSError if the reader has ended."""
    body = _encode(content).encode("ascii")
    unsent = memoryview(len(body).to_bytes(_LENGTH_BYTES, "big") + body)
    while unsent:
        unsent = unsent[write(descriptor, unsent) :]


def read_message(descriptor: int, max_bytes: int | None = None) -> Any:
    """Wait for one complete message; read nothing after it.

    Raises:
        EOFError: the other side closed before a message began.
        FramingError: the message is incomplete, malformed or above `max_bytes`.
    """
    reader = MessageReader(max_bytes)
    while not reader.complete:
        reader.take(read(descriptor, reader.wanted))
    return reader.content()


def read_answer(answers: int, notices: int) -> Any:
    """Read a message from `answers`; EOFError if `notices` has one first."""
    reader = MessageReader(MAX_MESSAGE_BYTES)
    ends = poll()
    ends.register(answers, POLLIN)
    ends.register(notices, POLLIN)
    while not reader.complete:
        if not any(descriptor == answers for descriptor, _ in ends.poll()):
            raise EOFError
        reader.take(read(answers, reader.wanted))
    return reader.content()


class MessageReader:
    """Reads one message in pieces, for a process that polls other descriptors."""

    def __init__(self, max_bytes: int | None) -> None:
        self._max_bytes = max_bytes
        self._head = b""
        self._body = bytearray()
        self._length: int | None = None

    @property
    def complete(self) -> bool:
        return self._length is not None and len(self._body) == self._length

    @property
    def wanted(self) -> int:
        if self._length is None:
            return _LENGTH_BYTES - len(self._head)
        return min(_CHUNK_BYTES, self._length - len(self._body))

    def take(self, piece: bytes) -> None:
        if not piece:
            if self._head:
                raise FramingError("the other side ended within a message")
            raise EOFError
        if self._length is not None:
            self._body += piece
            return
        self._head += piece
        if len(self._head) == _LENGTH_BYTES:
            self._length = int.from_bytes(self._head, "big")
            if self._max_bytes is not None and self._length > self._max_bytes:
                raise FramingError(f"an answer of {self._length} bytes is too long")

    def content(self) -> Any:
        try:
            return _decode(self._body.decode("ascii"))
        except (ValueError, RecursionError) as error:
            raise FramingError(f"the other side sent no message: {error}") from error
