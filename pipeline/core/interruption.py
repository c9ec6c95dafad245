"""Interruptions, by Ctrl-C or SIGTERM: seen through what they became, and held back for a while."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


def is_interruption(error: BaseException | None) -> bool:
    """Whether a KeyboardInterrupt is the error, or what it came of.

    One that comes while a class is made, so while a module is imported, is a RuntimeError in
    Python 3.11; one that comes in the midst of ending something may end as that thing's error.
    """
    seen = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, KeyboardInterrupt):
            return True
        seen.add(id(error))
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return False


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold back SIGINT and SIGTERM, where they would interrupt us, until the block has ended.

    For what must not be left half done: telling what has ended, ending what runs. Only the main
    thread is ever interrupted, so elsewhere it does nothing.
    """
    held: list[int] = []

    def hold(number: int, frame: FrameType | None) -> None:
        held.append(number)

    handlers = {}
    if threading.current_thread() is threading.main_thread():
        found = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        handlers = {number: handler for number, handler in found.items() if callable(handler)}
    try:
        for number in handlers:
            signal.signal(number, hold)
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if held:
            signal.raise_signal(held[0])
