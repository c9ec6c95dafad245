"""The clock of a load: how late the client's own scheduler is, and how busy its machine."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Self

TICK_SECONDS = 0.02
LOOK_SECONDS = 1.0  # between two readings of the machine's runnable threads
LOAD_AVERAGE = Path("/proc/loadavg")


class ClientClock:
    """Seconds since a load began, and the lateness of scheduled events."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._late: list[float] = []  # of ticks
        self._sent_late: list[float] = []  # of requests that had a time
        self._runnable: list[int] = []

    def now(self) -> float:
        return time.perf_counter() - self._began

    async def __aenter__(self) -> Self:
        self._began = time.perf_counter()
        self._ticking = asyncio.create_task(self._tick())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._ticking.cancel()
        await asyncio.gather(self._ticking, return_exceptions=True)

    async def sleep_until(self, second: float) -> None:
        """Wait for the second, and note how late it is then."""
        await asyncio.sleep(max(0.0, second - self.now()))
        self._sent_late.append(max(0.0, self.now() - second))

    def facts(self) -> dict[str, float]:
        """Return a LoadRun's known fields on the client."""
        found = {}
        if self._late:
            worst = max(_percentile_99(each) for each in (self._late, self._sent_late) if each)
            found = {"client_lag_s": worst, "client_late_s": sum(self._late)}
        if self._runnable:
            found["runnable"] = sum(self._runnable) / len(self._runnable)
        return found

    async def _tick(self) -> None:
        looked = -LOOK_SECONDS
        while True:
            before = self.now()
            if before - looked >= LOOK_SECONDS and (threads := count_runnable()) is not None:
                looked = before
                self._runnable.append(threads)
            await asyncio.sleep(TICK_SECONDS)
            self._late.append(max(0.0, self.now() - before - TICK_SECONDS))


def count_runnable() -> int | None:
    """Return the threads of this machine that run or are ready to; None if unknown."""
    try:
        return int(LOAD_AVERAGE.read_text().split()[3].partition("/")[0])
    except (OSError, ValueError, IndexError):
        return None


def _percentile_99(values: list[float]) -> float:
    return sorted(values)[int(0.99 * (len(values) - 1))]
