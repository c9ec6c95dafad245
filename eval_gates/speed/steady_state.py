"""Which part of a load counts: by time, without its start and its end.

At a fixed concurrency all requests of the first wave begin at once and the last ones run in an
emptying server; of a rate or trace the queue must fill first. None of that is how it is served.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eval_gates.speed.load_run import LoadRun

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    FloatArray = NDArray[np.float64]


class NoSteadyStateError(ValueError):
    """A load that is over before it is steady."""


@dataclass(frozen=True)
class Latencies:
    """Of the answered requests that count, in milliseconds: shape [requests] each."""

    ttft_ms: FloatArray
    tpot_ms: FloatArray
    """Per token after the first; of answers with one token there is none."""
    latency_ms: FloatArray
    failed: int
    """Requests that count and were not answered."""


def window_of(load: LoadRun) -> tuple[float, float]:
    """Where the steady part begins and ends, in seconds of the load.

    At a fixed concurrency: from the end of the first wave until the last request is sent.

    Raises:
        NoSteadyStateError: nothing is left.
    """
    if load.warmup_s is not None and load.measured_s is not None:
        return load.warmup_s, load.warmup_s + load.measured_s
    requests = load.requests
    first_wave = sorted(zip(requests.start_s, requests.end_s, strict=True), key=lambda r: r[0])
    ends = [end for _, end in first_wave[: load.concurrency] if end is not None]
    start, end = max(ends, default=0.0), max(requests.start_s, default=0.0)
    if not ends or end <= start:
        raise NoSteadyStateError("the load has one wave of requests only")
    return start, end


def steady_seconds(load: LoadRun) -> float:
    """How long the steady part lasts; 0 without any."""
    try:
        start, end = window_of(load)
    except NoSteadyStateError:
        return 0.0
    return end - start


def waves_in(load: LoadRun) -> float:
    """How many times as many requests end in the steady part as run at once.

    Raises:
        NoSteadyStateError: as `window_of`.
    """
    start, end = window_of(load)
    done = sum(each is not None and start < each <= end for each in load.requests.end_s)
    return done / (load.concurrency or 1)


def output_rate(load: LoadRun) -> float:
    """Output tokens a second in the steady part.

    Raises:
        NoSteadyStateError: as `window_of`, or no token came in it.
    """
    tokens, seconds = output_of(load)
    return tokens / seconds


def output_of(load: LoadRun) -> tuple[float, float]:
    """Output tokens in the steady part, and its seconds; raises as `output_rate`."""
    import numpy as np

    start, end = window_of(load)
    requests = load.requests
    answered = [i for i, error in enumerate(requests.error) if error is None]
    first = np.array([requests.start_s[i] + (requests.ttft_s[i] or 0.0) for i in answered])
    last = np.array([requests.end_s[i] or 0.0 for i in answered])
    rest = np.array([requests.output_tokens[i] - 1 for i in answered], dtype=float)
    lasts = last - first
    inside = np.clip(np.minimum(last, end) - np.maximum(first, start), 0.0, None)
    at_once = (start < last) & (last <= end)  # where the last token came with the first
    share = np.where(lasts > 0, inside / np.where(lasts > 0, lasts, 1.0), at_once)
    tokens = float((rest * share).sum() + ((start < first) & (first <= end)).sum())
    if tokens <= 0:
        raise NoSteadyStateError("no token came in the steady part of the load")
    return tokens, end - start


def lag_gain(load: LoadRun) -> float:
    """By how much the logarithm of the output rate could be larger with a punctual client.

    At a fixed concurrency a request begins where another ends. So each wave waits twice for a late
    client: to see the last token, and to send the next request. Both ends of the steady part may
    be late once more. The 99th percentile of the client's lag is taken for each of these.

    Raises:
        NoSteadyStateError: as `window_of`.
    """
    if load.client_lag_s is None:
        return math.inf
    start, end = window_of(load)
    share = load.client_lag_s * (2 * waves_in(load) + 2) / (end - start)
    return -math.log1p(-share) if share < 1 else math.inf


def latencies(load: LoadRun) -> Latencies:
    """Of the requests that are sent in the steady part.

    Raises:
        NoSteadyStateError: as `window_of`, or no request is sent in it.
    """
    import numpy as np

    start, end = window_of(load)
    requests = load.requests
    counted = [i for i, sent in enumerate(requests.start_s) if start <= sent < end]
    if not counted:
        raise NoSteadyStateError("no request was sent in the steady part of the load")
    answered = [i for i in counted if requests.error[i] is None]
    sent = np.array([requests.start_s[i] for i in answered])
    ttft = np.array([requests.ttft_s[i] or 0.0 for i in answered])
    last = np.array([requests.end_s[i] or 0.0 for i in answered])
    tokens = np.array([requests.output_tokens[i] for i in answered])
    several = tokens > 1
    per_token = (last - sent - ttft)[several] / (tokens[several] - 1)
    return Latencies(
        ttft_ms=1e3 * ttft,
        tpot_ms=1e3 * np.maximum(per_token, 0.0),
        latency_ms=1e3 * (last - sent),
        failed=len(counted) - len(answered),
    )
