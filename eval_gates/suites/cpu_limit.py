"""Limit of a call's CPU time, for checkers of others that answers can slow down without end."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def limit_cpu(seconds: float) -> Iterator[None]:
    """Raise TimeoutError inside the block after that CPU time of the process; main thread only.

    CPU time does not depend on the load of the machine. Python's `re` notices the signal, too.
    """

    def end(number: int, frame: Any) -> None:
        raise TimeoutError(f"it took more than {seconds:g} s of CPU time")

    before = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
