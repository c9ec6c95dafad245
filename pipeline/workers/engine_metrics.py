"""An engine's metrics during a load, and the lag of the client."""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from eval_gates.spec_decode_counters import counts_between

SAMPLE_SECONDS = 1.0
TICK_SECONDS = 0.02
ANSWER_SECONDS = 10.0
MAX_BYTES = 16 * 2**20
MAX_COUNT = 2**53
_LINE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{.*\})?\s+([-+.\deE]+)")
QUEUE = ("running", "waiting")
LOAD_AVERAGE = Path("/proc/loadavg")

Result = TypeVar("Result")


def counters_in(text: str, names: Mapping[str, str]) -> dict[str, int]:
    """Return values of Prometheus' text format, each summed over its labels.

    Raises:
        ValueError: a value is no count.
    """
    ours = {theirs: name for name, theirs in names.items()}
    found: dict[str, float] = {}
    for line in text.splitlines():
        match = _LINE.match(line)
        if match and match[1] in ours:
            name = ours[match[1]]
            found[name] = found.get(name, 0.0) + float(match[2])
    if not all(0 <= value <= MAX_COUNT for value in found.values()):
        raise ValueError("a counter is negative, or beyond counting")
    return {name: round(value) for name, value in found.items()}


def leave_out_queue(found: dict[str, int] | None) -> dict[str, int] | None:
    """Return what is counted from the engine's start; None if the engine reports none."""
    return {name: value for name, value in (found or {}).items() if name not in QUEUE} or None


def count_runnable() -> int | None:
    """Return the threads of this machine that run or are ready to; None if unknown."""
    try:
        return int(LOAD_AVERAGE.read_text().split()[3].partition("/")[0])
    except (OSError, ValueError, IndexError):
        return None


class SpecDecodeCounter:
    """Counters of an endpoint's speculative decoding from now on.

    Args:
        url: of the endpoint.
        names: as in `counters_in`; empty without speculative decoding: then nothing is requested.
    """

    def __init__(self, url: str, names: Mapping[str, str]) -> None:
        self._watch = MetricsPoller(url, names)
        self._before = self._look()

    def facts(self) -> dict[str, Any]:
        """Return drafted and accepted tokens since then, for a stage's result; {} if unknown."""
        found = counts_between(self._before, self._look())
        return {} if found is None else {"spec_decode": found}

    def _look(self) -> dict[str, int] | None:
        return asyncio.run(self._watch.counters()) if self._watch.names else None


@dataclass
class MetricsPoller:
    """Reader of an endpoint's counters during a load."""

    url: str  # of the endpoint
    # The counters' names, as in `counters_in`; `running` and `waiting` are its queue.
    names: Mapping[str, str]
    # (second of the monotonic clock, running, waiting) of each look.
    looks: list[tuple[float, dict[str, int]]] = field(default_factory=list)
    # Seconds by which the client's event loop was late, tick by tick.
    late: list[tuple[float, float]] = field(default_factory=list)
    # (second, threads of this machine that were ready to run), about once a second.
    runnable: list[tuple[float, int]] = field(default_factory=list)

    async def counters(self) -> dict[str, int] | None:
        """Return the counters without the queue; None if the endpoint reports none."""
        return leave_out_queue(await self._fetch())

    def counters_after(self, second: float) -> dict[str, int] | None:
        return next((leave_out_queue(found) for at, found in self.looks if at >= second), None)

    def queue_between(self, begin: float, end: float) -> dict[str, list[Any]]:
        """Return running and waiting requests between these seconds, counted from `begin`."""
        looks = [(at - begin, each) for at, each in self.looks if begin <= at <= end]
        looks = [(at, each) for at, each in looks if set(QUEUE) <= set(each)]
        queue = {name: [each[name] for _, each in looks] for name in QUEUE}
        return {"at_s": [at for at, _ in looks], **queue}

    async def poll_during(self, work: Awaitable[Result]) -> Result:
        """Do the work; poll the queue and the client's lag until it is done."""
        watching = [asyncio.create_task(self._look()), asyncio.create_task(self._tick())]
        try:
            return await work
        finally:
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)

    def lag_between(self, begin: float, end: float) -> dict[str, float]:
        """Return a LoadRun's fields on the client's lag between these seconds; {} if unknown.

        Before the first request the client draws prompts, which blocks its loop, and nothing else.
        """
        ordered = sorted(late for at, late in self.late if begin <= at <= end)
        if not ordered:
            return {}
        percentile = ordered[int(0.99 * (len(ordered) - 1))]
        return {"client_lag_s": percentile, "client_late_s": sum(ordered)}

    def runnable_between(self, begin: float, end: float) -> float | None:
        """Return the mean number of this machine's runnable threads; None if unknown."""
        found = [threads for at, threads in self.runnable if begin <= at <= end]
        return sum(found) / len(found) if found else None

    async def _look(self) -> None:
        while True:
            found = await self._fetch()
            if not found:
                return
            self.looks.append((time.perf_counter(), found))
            await asyncio.sleep(SAMPLE_SECONDS)

    async def _tick(self) -> None:
        looked = -math.inf
        while True:
            before = time.perf_counter()
            if before - looked >= SAMPLE_SECONDS and (threads := count_runnable()) is not None:
                looked = before
                self.runnable.append((before, threads))
            await asyncio.sleep(TICK_SECONDS)
            self.late.append((before, max(0.0, time.perf_counter() - before - TICK_SECONDS)))

    async def _fetch(self) -> dict[str, int] | None:
        """Return its counters; None if there are none, or the answer is unreadable."""
        import aiohttp

        limit = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
        plain = {"Accept-Encoding": "identity"}  # what is packed has no bound until it is unpacked
        try:
            # Looked up here: `connect_through` replaces it.
            connector: Any = aiohttp.TCPConnector()
            async with (
                aiohttp.ClientSession(
                    connector=connector, timeout=limit, trust_env=True, auto_decompress=False
                ) as session,
                session.get(f"{self.url}/metrics", headers=plain, allow_redirects=False) as answer,
            ):
                if answer.status != 200:
                    return None
                body = bytearray()
                async for chunk in answer.content.iter_any():
                    body += chunk
                    if len(body) > MAX_BYTES:
                        return None
                return counters_in(body.decode(), self.names)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
            return None
