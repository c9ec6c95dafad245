"""Interruptions, by Ctrl-C, SIGTERM or a terminal that goes away: seen through what they became.

They are held back where something must not be left half done.
"""

from __future__ import annotations

import errno
import os
import signal
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn


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


INTERRUPTIONS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def interrupt_on_signals() -> None:
    """Have SIGTERM and SIGHUP interrupt us, too: what runs is ended, and the record closed.

    Whoever has us ignore SIGHUP, as nohup does, wants us to outlive the terminal.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, on_hangup)


def on_hangup(number: int, frame: FrameType | None) -> NoReturn:
    """Be interrupted, by a terminal that went away or by somebody's SIGHUP."""
    detach_lost_terminals()
    raise KeyboardInterrupt


def detach_lost_terminals() -> None:
    """Have what we still say go nowhere, where it would go to a terminal that is gone.

    Writing to one fails, and would end us before what runs is ended.
    """
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (1, 2):
        try:
            termios.tcgetattr(descriptor)
        except termios.error as error:  # also where it is no terminal
            if error.args[0] == errno.EIO:
                os.dup2(null, descriptor)
    os.close(null)


@contextmanager
def hold_interruptions() -> Iterator[None]:
    """Hold back INTERRUPTIONS, where they would interrupt us, until the block has ended.

    For what must not be left half done: telling what has ended, ending what runs. Only the main
    thread is ever interrupted, so elsewhere it does nothing.
    """
    held: list[int] = []

    def hold(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            detach_lost_terminals()
        held.append(number)

    handlers = {}
    if threading.current_thread() is threading.main_thread():
        found = {number: signal.getsignal(number) for number in INTERRUPTIONS}
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
