"""Measured loads made up for tests: requests that all take equally long."""

from __future__ import annotations

import heapq
import random
from typing import Any

import numpy as np

from eval_gates.speed.load_run import LoadRun, RequestColumns

PROMPTS = "a" * 64


def requests_in_waves(
    waves: int = 10, in_flight: int = 4, *, seconds: float = 1.0, tokens: int = 10
) -> RequestColumns:
    """Waves of requests one after another, each `seconds` long; its first token after a tenth."""
    n = waves * in_flight
    starts = [seconds * (i // in_flight) for i in range(n)]
    return RequestColumns(
        start_s=starts,
        ttft_s=[0.1 * seconds] * n,
        end_s=[start + seconds for start in starts],
        input_tokens=[20] * n,
        output_tokens=[tokens] * n,
        error=[None] * n,
    )


def load_in_waves(
    waves: int = 10, in_flight: int = 4, *, seconds: float = 1.0, tokens: int = 10, **changes: Any
) -> LoadRun:
    """A closed loop of such waves; any field can be changed."""
    fields: dict[str, Any] = {
        "side": "candidate",
        "workload": "chat",
        "block": 0,
        "order": 0,
        "server_run": 0,
        "seed": 1,
        "prompts_sha256": PROMPTS,
        "arrivals": "concurrency",
        "concurrency": in_flight,
        "started": 1.7e9 + 60.0 * changes.get("block", 0),
        "seconds": waves * seconds,
        "client_lag_s": 0.001,
        "requests": requests_in_waves(waves, in_flight, seconds=seconds, tokens=tokens),
    }
    return LoadRun(**{**fields, **changes})


def block(number: int, ratio: float, **changes: Any) -> list[LoadRun]:
    """Both sides of a block, of which the candidate is so many times as fast."""
    common = {"block": number, "seed": number + 1, "prompts_sha256": f"{number:064x}"}
    return [
        load_in_waves(side="baseline", order=0, **common),
        load_in_waves(side="candidate", order=1, seconds=1 / ratio, **{**common, **changes}),
    ]


def blocks(ratios: list[float]) -> list[LoadRun]:
    """A block for each ratio."""
    return [load for number, ratio in enumerate(ratios) for load in block(number, ratio)]


def round_of(number: int, *, ttft_s: float = 0.1, **changes: Any) -> LoadRun:
    """Eight seconds of warm-up, then twenty that count, one request a second."""
    starts = [float(i) for i in range(36)]
    requests = {
        "start_s": starts,
        "ttft_s": [ttft_s] * 36,
        "end_s": [start + ttft_s + 0.9 for start in starts],
        "input_tokens": [20] * 36,
        "output_tokens": [10] * 36,
        "error": [None] * 36,
    }
    fields: dict[str, Any] = {
        "block": number,
        "seed": number,
        "arrivals": "rate",
        "rate": 1.0,
        "concurrency": None,
        "warmup_s": 8.0,
        "measured_s": 20.0,
        "requests": requests,
    }
    return load_in_waves(**{**fields, **changes})


def queued_requests(rate: float, lasts: float, service_s: float, seed: str) -> RequestColumns:
    """Poisson arrivals for so many seconds at one server, which takes them one after another.

    Args:
        rate: requests/s that come.
        service_s: mean seconds that it takes for one; the first token comes after a tenth.
    """
    chance = random.Random(seed)
    now = free = 0.0
    rows: list[tuple[float, float, float]] = []
    while now <= lasts:
        takes = service_s * chance.uniform(0.5, 1.5)
        begins = max(now, free)
        free = begins + takes
        rows.append((now, begins - now + takes / 10, free))
        now += chance.expovariate(rate)
    starts, ttfts, ends = zip(*rows, strict=True)
    return RequestColumns(
        start_s=list(starts),
        ttft_s=list(ttfts),
        end_s=list(ends),
        input_tokens=[20] * len(rows),
        output_tokens=[10] * len(rows),
        error=[None] * len(rows),
    )


def queued_round(chance: np.random.Generator, slots: int, load: float) -> LoadRun:
    """A round of a server with so many slots, first come first served, at that share of capacity.

    An answer takes a second on average, with a coefficient of variation of 30 %. The round has ten
    of these and at least 200 requests, after a warm-up of three.
    """
    warmup, measured = 3.0, max(10.0, 200 / (load * slots))
    lasts = measured + 2 * warmup
    sent = np.sort(chance.uniform(0, lasts, chance.poisson(load * slots * lasts)))
    spread = np.sqrt(np.log(1 + 0.3**2))
    takes = chance.lognormal(-(spread**2) / 2, spread, sent.size)
    free = [0.0] * slots
    begun = np.empty(sent.size)
    for number, (at, seconds) in enumerate(zip(sent, takes, strict=True)):
        begun[number] = max(at, heapq.heappop(free))
        heapq.heappush(free, begun[number] + seconds)
    requests = {
        "start_s": sent.tolist(),
        "ttft_s": (begun - sent + 0.01).tolist(),
        "end_s": (begun + np.maximum(takes, 0.02)).tolist(),
        "input_tokens": [20] * sent.size,
        "output_tokens": [10] * sent.size,
        "error": [None] * sent.size,
    }
    return round_of(0, requests=requests, rate=load * slots, warmup_s=warmup, measured_s=measured)
