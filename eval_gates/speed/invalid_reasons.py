"""Reasons why a load is invalid."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from eval_gates.spec_decode_counters import counts_between
from eval_gates.spec_decode_stats import SpecDecodeStats
from eval_gates.speed.load_run import LoadRun
from eval_gates.speed.steady_state import (
    NoSteadyStateError,
    count_waves,
    output_rate,
    steady_window,
)
from pipeline.core.record import Record

if TYPE_CHECKING:
    from eval_gates.speed.steady_state import FloatArray

HIT_RATE_TOLERANCE = 0.05
MIN_WAVES = 7  # that end in the steady state; a load has at least eight, and one may be late
MIN_BACKLOG_SHARE = 0.1  # of the requests in the steady state: more than a momentary queue
SAMPLES_PER_QUARTER = 64  # of the requests in flight, per quarter of the steady state


FaultKind = Literal[
    "hit_rate",
    "no_counter",
    "own_cache",
    "unlike",
    "failed_requests",
    "client_lag",
    "too_short",
    "too_few",
    "throttled",
    "other_process",
]


class InvalidReason(Record):
    """Reason of one load; rules.py has its effect."""

    kind: FaultKind
    side: str
    block: int = Field(description="number of the block or round, from 0")
    words: str

    def __str__(self) -> str:
        return f"{self.side}, number {self.block}: {self.words}"


def hit_rate(load: LoadRun) -> float | None:
    """Return the share of prompt tokens from the prefix cache."""
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
    queries_before, queries_after, hits_before, hits_after = (int(count or 0) for count in counts)
    queries, hits = queries_after - queries_before, hits_after - hits_before
    return hits / queries if queries > 0 and 0 <= hits <= queries else None


def count_drafts(load: LoadRun) -> SpecDecodeStats | None:
    """Return the load's speculative decoding statistics."""
    before, after = load.before, load.after
    counts = counts_between(
        before.model_dump() if before is not None else None,
        after.model_dump() if after is not None else None,
    )
    return SpecDecodeStats(**counts) if counts is not None else None


def find_invalid_reasons(
    loads: Sequence[LoadRun], *, declared: float | None, must_count: bool = False
) -> list[InvalidReason]:
    """Find what is wrong with loads by themselves, in the order of measuring.

    Args:
        declared: the workload's hit rate; None if it declares none.
        must_count: hits must be counted even if none are declared.
    """
    found = [each for load in loads for each in _find_load_reasons(load, declared, must_count)]
    seen: dict[tuple[str, int], int] = {}
    for load in loads:
        block = seen.setdefault((load.side, load.seed), load.block)
        if block != load.block:
            words = f"it has the seed of number {block}, so its prompts may be in the cache"
            found.append(_reason("own_cache", load, words))
    return found


def find_late_client(load: LoadRun, is_late: Callable[[LoadRun], bool]) -> Iterator[InvalidReason]:
    """Find a load whose client was late by its own clock."""
    try:
        if not is_late(load):
            return
    except NoSteadyStateError:
        return  # which is a reason by itself
    lag = load.client_lag_s
    words = "the client's lag is unknown"
    if lag is not None:
        words = f"the client was late by {1e3 * lag:.0f} ms a step"
    yield _reason("client_lag", load, words + describe_background_load(load))


def describe_background_load(load: LoadRun) -> str:
    """Describe the other load on the client's machine; empty if not measured."""
    if load.runnable is None or load.cpus is None:
        return ""
    return f" ({load.runnable:.1f} threads were ready to run on {load.cpus} CPUs)"


def _find_load_reasons(
    load: LoadRun, declared: float | None, must_count: bool
) -> Iterator[InvalidReason]:
    for each in load.interference:
        yield _reason(each.kind, load, each.what)
    yield from _find_hit_rate_reasons(load, declared, must_count)
    try:
        waves = count_waves(load) if load.arrivals == "concurrency" else None
        output_rate(load)
    except NoSteadyStateError as error:
        # If nothing was answered, the failed requests are the reason.
        if any(each is None for each in load.requests.error):
            yield _reason("too_short", load, str(error))
    else:
        if waves is not None and waves < MIN_WAVES:
            words = f"{waves:.1f} waves of requests in the steady state; {MIN_WAVES} are needed"
            yield _reason("too_short", load, words)


def _find_hit_rate_reasons(
    load: LoadRun, declared: float | None, must_count: bool
) -> Iterator[InvalidReason]:
    if declared is None:
        return
    measured = hit_rate(load)
    if measured is None:
        # Random prompts are new in each load, so they need no counter.
        if declared > 0 or must_count:
            words = f"the engine does not count prefix cache hits, and {declared:.2f} is declared"
            yield _reason("no_counter", load, words)
    elif abs(measured - declared) > HIT_RATE_TOLERANCE:
        words = (
            f"the prefix cache's hit rate was {measured:.2f}; the workload declares {declared:.2f}"
        )
        yield _reason("hit_rate", load, words)


def find_failed_requests(loads: Sequence[LoadRun]) -> list[InvalidReason]:
    """Find loads with failed requests, which have no throughput."""
    found = []
    for load in loads:
        errors = [error for error in load.requests.error if error is not None]
        if errors:
            words = f"{len(errors)} of {len(load.requests)} requests failed: {errors[0]}"
            found.append(_reason("failed_requests", load, words))
    return found


def find_side_differences(block: Sequence[LoadRun]) -> list[InvalidReason]:
    """Find a block whose sides had different prompts."""
    if len({(load.seed, load.prompts_sha256) for load in block}) == 1:
        return []
    return [_reason("unlike", block[-1], "the two sides had different prompts")]


def find_too_few_requests(load: LoadRun, percentiles: Iterable[int]) -> list[InvalidReason]:
    """Find rounds with too few requests for a percentile.

    At least one must be expected beyond it: 20 requests for P95, 100 for P99.
    """
    start, end = steady_window(load)
    counted = sum(start <= sent < end for sent in load.requests.start_s)
    highest = max(percentiles, default=0)
    needed = min_requests(highest)
    if counted >= needed:
        return []
    words = f"{counted} requests count, but P{highest} needs {needed}"
    return [_reason("too_few", load, words)]


def short_rounds_reason(load: LoadRun) -> InvalidReason:
    """Return the reason that rounds stay too short for their answers."""
    answer = median_answer_s(load) or 0.0
    words = (
        f"rounds of {load.measured_s or 0.0:g} s are shorter than ten median answers of "
        f"{answer:.3g} s: increase the workload's 'seconds'"
    )
    return _reason("too_short", load, words)


def min_requests(percentile: int) -> int:
    """Return how many requests a percentile needs."""
    return math.ceil(100 / (100 - percentile))


def is_over_saturated(load: LoadRun) -> bool:
    """Return whether requests arrive faster than the server answers them.

    The client's own counts decide, without failed requests. At least a tenth of the steady state's
    arrivals is left over, and each quarter had more in flight than the one before.
    """
    import numpy as np

    came, answered = count_flow(load)
    if came - answered < MIN_BACKLOG_SHARE * came or not came:
        return False
    start, end = steady_window(load)
    sent, ended = _times(load)
    at = np.linspace(start, end, 4 * SAMPLES_PER_QUARTER, endpoint=False)
    in_flight = np.searchsorted(sent, at, side="right") - np.searchsorted(ended, at, side="right")
    quarter_means = [float(each.mean()) for each in np.array_split(in_flight, 4)]
    return all(before < after for before, after in pairwise(quarter_means))


def count_flow(load: LoadRun) -> tuple[int, int]:
    """Count the arrivals and the answers of the steady state."""
    start, end = steady_window(load)
    sent, ended = _times(load)
    return int(((sent >= start) & (sent < end)).sum()), int(
        ((ended >= start) & (ended < end)).sum()
    )


def _times(load: LoadRun) -> tuple[FloatArray, FloatArray]:
    import numpy as np

    requests = load.requests
    answered = [i for i, error in enumerate(requests.error) if error is None]
    sent = np.array([requests.start_s[i] for i in answered], dtype=float)
    ended = np.array([requests.end_s[i] or 0.0 for i in answered], dtype=float)
    return np.sort(sent), np.sort(ended)


def median_answer_s(load: LoadRun) -> float | None:
    """Return the median seconds of an answer; None if nothing was answered."""
    times = zip(load.requests.start_s, load.requests.end_s, strict=True)
    known = sorted(end - start for start, end in times if end is not None)
    return known[len(known) // 2] if known else None


def _reason(kind: FaultKind, load: LoadRun, words: str) -> InvalidReason:
    return InvalidReason(kind=kind, side=load.side, block=load.block, words=words)
