"""Interruptions by Ctrl-C, SIGTERM or a closed terminal."""

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
    """Return whether a KeyboardInterrupt is the error or its cause.

    Python 3.11 raises RuntimeError for an interrupt while a class is created.
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
    """Make SIGTERM and SIGHUP raise KeyboardInterrupt.

    An ignored SIGHUP stays ignored, for nohup.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, on_hangup)


def on_hangup(number: int, frame: FrameType | None) -> NoReturn:
    """Raise KeyboardInterrupt after the terminal was closed."""
    detach_lost_terminals()
    raise KeyboardInterrupt


def detach_lost_terminals() -> None:
    """Redirect output of a lost terminal.

    A failed write would end this process before its children.
    """
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (1, 2):
        try:
            termios.tcgetattr(descriptor)
        except termios.error as error:  # also raised if it is not a terminal
            if error.args[0] == errno.EIO:
                os.dup2(null, descriptor)
    os.close(null)


@contextmanager
def hold_interruptions() -> Iterator[None]:
    """Delay INTERRUPTIONS until the block ends."""
    held: list[int] = []

    def hold(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            detach_lost_terminals()
        held.append(number)

    handlers = {}
    if threading.current_thread() is threading.main_thread():
        present = {number: signal.getsignal(number) for number in INTERRUPTIONS}
        handlers = {number: handler for number, handler in present.items() if callable(handler)}
    try:
        for number in handlers:
            signal.signal(number, hold)
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if held:
            signal.raise_signal(held[0])
