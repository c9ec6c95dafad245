"""Why a load cannot be trusted: whatever it measured, it was not what the claim is about."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from eval_gates.spec_decode_counters import counts_between
from eval_gates.spec_decode_stats import SpecDecodeStats
from eval_gates.speed.load_run import LoadRun
from eval_gates.speed.steady_state import (
    NoSteadyStateError,
    lag_gain,
    output_rate,
    waves_in,
    window_of,
)
from pipeline.core.record import Record

if TYPE_CHECKING:
    from eval_gates.speed.proportion_test import FloatArray

HIT_RATE_TOLERANCE = 0.05
LARGEST_LAG = 0.1  # of the time that is judged
FEWEST_WAVES = 7  # that end in the steady part: of the eight that a load has at least, one may lag
LEFT_OVER = 0.1  # of the requests that come in the steady part: it is no queue of a moment
LOOKS_A_QUARTER = 64  # of the steady part, at how many requests are in flight
MOST_GAIN = 100.0  # by a punctual client, that is told as a number


FaultKind = Literal[
    "hit_rate",
    "no_counter",
    "acceptance",
    "own_cache",
    "unlike",
    "failed_requests",
    "client_lag",
    "too_short",
    "too_few",
    "drift",
    "throttled",
    "other_process",
]


class InvalidReason(Record):
    """One cause, at one load; what it does to the measurement is in `validity.HANDLING`."""

    kind: FaultKind
    side: str
    block: int = Field(description="number of the block or round, from 0")
    words: str

    def __str__(self) -> str:
        return f"{self.side}, number {self.block}: {self.words}"


def hit_rate(load: LoadRun) -> float | None:
    """Share of the prompt tokens that the prefix cache answered; None where nobody counted."""
    before, after = load.before, load.after
    if before is None or after is None:
        return None
    counts = (
        before.prefix_cache_queries,
        after.prefix_cache_queries,
        before.prefix_cache_hits,
        after.prefix_cache_hits,
    )
    if None in counts:
        return None
    queries_before, queries, hits_before, hits = (int(each or 0) for each in counts)
    asked, found = queries - queries_before, hits - hits_before
    return found / asked if asked > 0 and 0 <= found <= asked else None


def drafted_in(load: LoadRun) -> SpecDecodeStats | None:
    """What was drafted and accepted in it; None where nobody counted."""
    before, after = load.before, load.after
    counts = counts_between(
        before.model_dump() if before is not None else None,
        after.model_dump() if after is not None else None,
    )
    return SpecDecodeStats(**counts) if counts is not None else None


def undrafted(load: LoadRun) -> list[InvalidReason]:
    """That a candidate's engine did not count what it drafted."""
    if load.side != "candidate" or drafted_in(load) is not None:
        return []
    return [_cause("acceptance", load, "the engine does not count drafted and accepted tokens")]


def distrusted(
    loads: Sequence[LoadRun],
    *,
    declared: float | None,
    judged_s: float | None,
    must_count: bool = False,
    bounds_lag: bool = False,
) -> list[InvalidReason]:
    """All causes, in the order of measuring.

    Args:
        loads: of one claim.
        declared: hit rate of the workload; None where it declares none.
        judged_s: the shortest time that the claim is about, which the client's own lag is held
            against; None: the median answer of each load.
        must_count: hits must be counted, also where none are declared.
        bounds_lag: the client's lag is taken into what is judged, and is no fault.
    """
    found: list[InvalidReason] = []
    for load in loads:
        if not bounds_lag:
            found += _lag_faults(load, judged_s)
        found += _of_one(load, declared, must_count)
    seen: dict[tuple[str, int], int] = {}
    for load in loads:
        block = seen.setdefault((load.side, load.seed), load.block)
        if block != load.block:
            words = f"the seed of number {block} again: its prompts may be in the cache"
            found.append(_cause("own_cache", load, words))
    return found


def _lag_faults(load: LoadRun, judged_s: float | None) -> Iterator[InvalidReason]:
    shortest = judged_s if judged_s is not None else median_answer(load)
    lag = load.client_lag_s
    if lag is None:
        yield _cause("client_lag", load, "how late the client was is not known")
    elif shortest is not None and lag > LARGEST_LAG * shortest:
        words = (
            f"the client was late by {1e3 * lag:.0f} ms, more than a tenth of the "
            f"{1e3 * shortest:.0f} ms that are judged"
        )
        yield _cause("client_lag", load, words + beside(load))


def lagging(load: LoadRun) -> InvalidReason:
    """The client's lag, where a throughput without it could lie on the other side."""
    if load.client_lag_s is None:
        return _cause("client_lag", load, "how late the client was is not known")
    gain = math.exp(min(lag_gain(load), 50.0))
    most = f"up to {gain:.3g} times" if gain < MOST_GAIN else "any number of times"
    words = (
        f"the client was late by {1e3 * load.client_lag_s:.0f} ms a step, so the throughput may be "
        f"{most} what was measured"
    )
    return _cause("client_lag", load, words + beside(load))


def beside(load: LoadRun) -> str:
    """What else the machine of the client did, in words; '' where nobody looked."""
    if load.runnable is None or load.cpus is None:
        return ""
    return f" ({load.runnable:.1f} threads were ready to run on {load.cpus} CPUs)"


def _of_one(load: LoadRun, declared: float | None, must_count: bool) -> Iterator[InvalidReason]:
    for each in load.interference:
        yield _cause(each.kind, load, each.what)
    yield from _hit_rate_faults(load, declared, must_count)
    try:
        waves = waves_in(load) if load.arrivals == "concurrency" else None
        output_rate(load)
    except NoSteadyStateError as error:
        # Where nothing was answered, that is what is to be said.
        if any(each is None for each in load.requests.error):
            yield _cause("too_short", load, str(error))
    else:
        if waves is not None and waves < FEWEST_WAVES:
            words = f"{waves:.1f} waves of requests in the steady part, {FEWEST_WAVES} are needed"
            yield _cause("too_short", load, words)


def _hit_rate_faults(
    load: LoadRun, declared: float | None, must_count: bool
) -> Iterator[InvalidReason]:
    if declared is None:
        return
    measured = hit_rate(load)
    if measured is None:
        # Random prompts are new in each load, and need no counter.
        if declared > 0 or must_count:
            words = f"the engine does not count its prefix cache's hits, {declared:.2f} is declared"
            yield _cause("no_counter", load, words)
    elif abs(measured - declared) > HIT_RATE_TOLERANCE:
        words = (
            f"the prefix cache's hit rate was {measured:.2f}, the workload declares {declared:.2f}"
        )
        yield _cause("hit_rate", load, words)


def failures(loads: Sequence[LoadRun]) -> list[InvalidReason]:
    """Loads with requests that failed: what was not answered has no speed."""
    found = []
    for load in loads:
        errors = [error for error in load.requests.error if error is not None]
        if errors:
            words = f"{len(errors)} of {len(load.requests)} requests failed: {errors[0]}"
            found.append(_cause("failed_requests", load, words))
    return found


def unlike(baseline: LoadRun, candidate: LoadRun) -> list[InvalidReason]:
    """Two sides of a block that were not asked the same."""
    if baseline.seed == candidate.seed and baseline.prompts_sha256 == candidate.prompts_sha256:
        return []
    return [_cause("unlike", candidate, "the two sides were not asked the same")]


def drifting(last: LoadRun, how: str) -> InvalidReason:
    """What was measured is not what comes next: its later half is another than its earlier one."""
    return _cause("drift", last, f"{how} in the later half as in the earlier, and went on")


def too_few(load: LoadRun, percentiles: Iterable[int]) -> list[InvalidReason]:
    """A round with too few requests for a percentile: P95 of ten is their slowest, or less.

    So many must count that at least one is expected beyond it: 20 for P95, 100 for P99.
    """
    start, end = window_of(load)
    counted = sum(start <= sent < end for sent in load.requests.start_s)
    highest = max(percentiles, default=0)
    needed = fewest_requests(highest)
    if counted >= needed:
        return []
    words = f"{counted} requests count, and P{highest} needs {needed}"
    return [_cause("too_few", load, words)]


def too_short(load: LoadRun) -> InvalidReason:
    """Rounds that stay shorter than their answers need."""
    answer = median_answer(load) or 0.0
    words = (
        f"rounds of {load.measured_s or 0.0:g} s are shorter than ten median answers of "
        f"{answer:.3g} s: give the workload more 'seconds'"
    )
    return _cause("too_short", load, words)


def fewest_requests(percentile: int) -> int:
    """That a percentile is of."""
    return math.ceil(100 / (100 - percentile))


def over_saturated(load: LoadRun) -> bool:
    """Whether requests come faster than they are answered: more and more are in flight.

    Such a load has no steady part: the longer it lasts, the worse its latencies. Both conditions
    are the client's own counts, whatever a server reports of its queue. A tenth of the requests
    that came in the steady part is left over, and more were in flight in each quarter than in the
    one before: a queue that comes and goes is a steady server's. Failed requests are left out.
    """
    import numpy as np

    came, answered = flow(load)
    if came - answered < LEFT_OVER * came or not came:
        return False
    start, end = window_of(load)
    sent, ended = _times(load)
    at = np.linspace(start, end, 4 * LOOKS_A_QUARTER, endpoint=False)
    in_flight = np.searchsorted(sent, at, side="right") - np.searchsorted(ended, at, side="right")
    of_quarters = [float(each.mean()) for each in np.array_split(in_flight, 4)]
    return all(before < after for before, after in pairwise(of_quarters))


def flow(load: LoadRun) -> tuple[int, int]:
    """How many requests came in the steady part, and how many were answered in it."""
    start, end = window_of(load)
    sent, ended = _times(load)
    return int(((sent >= start) & (sent < end)).sum()), int(
        ((ended >= start) & (ended < end)).sum()
    )


def _times(load: LoadRun) -> tuple[FloatArray, FloatArray]:
    """When the requests that were answered were sent, and when their answers ended; each sorted."""
    import numpy as np

    requests = load.requests
    answered = [i for i, error in enumerate(requests.error) if error is None]
    sent = np.array([requests.start_s[i] for i in answered], dtype=float)
    ended = np.array([requests.end_s[i] or 0.0 for i in answered], dtype=float)
    return np.sort(sent), np.sort(ended)


def median_answer(load: LoadRun) -> float | None:
    """The median time of an answer, in seconds; None where nothing was answered."""
    times = zip(load.requests.start_s, load.requests.end_s, strict=True)
    known = sorted(end - start for start, end in times if end is not None)
    return known[len(known) // 2] if known else None


def _cause(kind: FaultKind, load: LoadRun, words: str) -> InvalidReason:
    return InvalidReason(kind=kind, side=load.side, block=load.block, words=words)
