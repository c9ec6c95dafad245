"""Steady state of a load: the time between its start-up and its end."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from eval_gates.speed.load_run import LoadRun

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    FloatArray = NDArray[np.float64]

MIN_BACKLOG_SHARE = 0.1  # of the requests in the steady state: more than a momentary queue
_ENDLESS_MS = 1e99  # of a failed request: a time and infinity cannot be interpolated
SAMPLES_PER_QUARTER = 64  # of the requests in flight, per quarter of the steady state


class NoSteadyStateError(ValueError):
    """The load ends before it is steady."""


def steady_window(load: LoadRun) -> tuple[float, float]:
    """Return the steady state's start and end, in seconds of the load.

    At a fixed concurrency it lasts from the first wave's end until the last sending.
    """
    if load.warmup_s is not None and load.measured_s is not None:
        return load.warmup_s, load.warmup_s + load.measured_s
    requests = load.requests
    first_wave = sorted(zip(requests.start_s, requests.end_s, strict=True), key=lambda r: r[0])
    ends = [end for _, end in first_wave[: load.concurrency] if end is not None]
    start = max(ends, default=0.0)
    end = max(requests.start_s, default=0.0)
    if not ends or end <= start:
        raise NoSteadyStateError("the load has one wave of requests only")
    return start, end


def count_waves(load: LoadRun) -> float:
    """Return ended requests, divided by the concurrency."""
    start, end = steady_window(load)
    done = sum(ended is not None and start < ended <= end for ended in load.requests.end_s)
    return done / (load.concurrency or 1)


def output_rate(load: LoadRun) -> float:
    """Return output tokens per second, or raise NoSteadyStateError."""
    import numpy as np

    start, end = steady_window(load)
    requests = load.requests
    answered = [i for i, error in enumerate(requests.error) if error is None]
    first = np.array([requests.start_s[i] + (requests.ttft_s[i] or 0.0) for i in answered])
    last = np.array([requests.end_s[i] or 0.0 for i in answered])
    rest = np.array([requests.output_tokens[i] - 1 for i in answered], dtype=float)
    durations = last - first
    inside = np.clip(np.minimum(last, end) - np.maximum(first, start), 0.0, None)
    single = (start < last) & (last <= end)  # the last token came with the first
    share = np.where(durations > 0, inside / np.where(durations > 0, durations, 1.0), single)
    tokens = float((rest * share).sum() + ((start < first) & (first <= end)).sum())
    if tokens <= 0:
        raise NoSteadyStateError("the load's steady state has no token")
    return tokens / (end - start)


def lag_gain(load: LoadRun) -> float:
    """Return by how much a punctual client could increase the log of the output rate.

    Each wave waits twice for a late client, and both ends once, each for the lag's 99th percentile.
    A slot's delays are at most the client's total lag.
    """
    if load.client_lag_s is None:
        return math.inf
    start, end = steady_window(load)
    delays = load.client_lag_s * (2 * count_waves(load) + 2)
    if load.client_late_s is not None:
        delays = min(delays, load.client_late_s)
    share = delays / (end - start)
    return -math.log1p(-share) if share < 1 else math.inf


def latencies(load: LoadRun) -> tuple[dict[str, FloatArray], int]:
    """Return answered requests' milliseconds by name, and the number of others, both counted.

    Requests count that are sent in the steady state. `tpot_ms` is per token after the first.
    """
    import numpy as np

    start, end = steady_window(load)
    requests = load.requests
    counted = [i for i, sent in enumerate(requests.start_s) if start <= sent < end]
    if not counted:
        raise NoSteadyStateError("no request was sent in the load's steady state")
    answered = [i for i in counted if requests.error[i] is None]
    sent = np.array([requests.start_s[i] for i in answered])
    ttft = np.array([requests.ttft_s[i] or 0.0 for i in answered])
    last = np.array([requests.end_s[i] or 0.0 for i in answered])
    tokens = np.array([requests.output_tokens[i] for i in answered])
    several = tokens > 1
    per_token = (last - sent - ttft)[several] / (tokens[several] - 1)
    times = {"ttft_ms": ttft, "tpot_ms": np.maximum(per_token, 0.0), "latency_ms": last - sent}
    return {name: 1e3 * seconds for name, seconds in times.items()}, len(counted) - len(answered)


def percentiles(load: LoadRun, names: Iterable[str]) -> dict[str, float]:
    """Return percentiles in milliseconds by name, and `errors`: the failed requests.

    One without values is infinite, as is a failed request's time.
    """
    import numpy as np

    figures = {"errors": float(sum(error is not None for error in load.requests.error))}
    try:
        measured, failed = latencies(load)
    except NoSteadyStateError:
        measured = {}
        failed = 0
    for name in names:
        what, _, percentile = name.rpartition("_p")
        values = measured.get(what)
        if values is None or not values.size:
            figures.setdefault(name, math.inf)
            continue
        times = np.append(values, np.full(failed, _ENDLESS_MS))
        # Linear ones are too low: a start at the limit with 40 requests passed in 13 %, not 2.5 %.
        time = float(np.percentile(times, int(percentile), method="median_unbiased"))
        figures[name] = time if time <= values.max() else math.inf
    return figures


def count_flow(load: LoadRun) -> tuple[int, int]:
    """Count the steady state's arrivals and answers, without failed requests."""
    start, end = steady_window(load)
    sent, ended = _times(load)
    came, answered = ((start <= moments) & (moments < end) for moments in (sent, ended))
    return int(came.sum()), int(answered.sum())


def is_over_saturated(load: LoadRun) -> bool:
    """Return whether requests arrive faster than the server answers them.

    A tenth is left over, and each quarter had more in flight than the one before.
    """
    import numpy as np

    came, answered = count_flow(load)
    if came - answered < MIN_BACKLOG_SHARE * came or not came:
        return False
    start, end = steady_window(load)
    sent, ended = _times(load)
    at = np.linspace(start, end, 4 * SAMPLES_PER_QUARTER, endpoint=False)
    in_flight = np.searchsorted(sent, at, side="right") - np.searchsorted(ended, at, side="right")
    quarter_means = [float(quarter.mean()) for quarter in np.array_split(in_flight, 4)]
    return all(before < after for before, after in pairwise(quarter_means))


def median_answer_s(load: LoadRun) -> float | None:
    """Return an answer's median seconds, if any."""
    times = zip(load.requests.start_s, load.requests.end_s, strict=True)
    known = [end - start for start, end in times if end is not None]
    return median(known) if known else None


def _times(load: LoadRun) -> tuple[FloatArray, FloatArray]:
    import numpy as np

    requests = load.requests
    answered = [i for i, error in enumerate(requests.error) if error is None]
    sent = np.array([requests.start_s[i] for i in answered], dtype=float)
    ended = np.array([requests.end_s[i] or 0.0 for i in answered], dtype=float)
    return np.sort(sent), np.sort(ended)
