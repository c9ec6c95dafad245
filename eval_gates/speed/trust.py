"""Why a load cannot be trusted: whatever it measured, it was not what the claim is about."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from pydantic import Field

from eval_gates.draft_counts import counts_between
from eval_gates.drafted import Drafted
from eval_gates.speed.load import MeasuredLoad
from eval_gates.speed.steady import NoSteadyPartError, output_rate, waves_in, window_of
from pipeline.core.record import Record

HIT_RATE_TOLERANCE = 0.05
LARGEST_LAG = 0.1  # of the time that is judged
FEWEST_WAVES = 7  # that end in the steady part: of the eight that a load has at least, one may lag
LEFT_OVER = 0.1  # of the requests that come in the steady part: it is no queue of a moment
GROWTH = 2.0  # from the first quarter of the steady part to its last: then it is no steady part


class Distrust(Record):
    """One cause, at one load."""

    kind: Literal[
        "hit_rate",
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
    side: str
    block: int = Field(description="number of the block or round, from 0")
    words: str

    def __str__(self) -> str:
        return f"{self.side}, number {self.block}: {self.words}"


def hit_rate(load: MeasuredLoad) -> float | None:
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


def drafted_in(load: MeasuredLoad) -> Drafted | None:
    """What was drafted and accepted in it; None where nobody counted."""
    before, after = load.before, load.after
    counts = counts_between(
        before.model_dump() if before is not None else None,
        after.model_dump() if after is not None else None,
    )
    return Drafted(**counts) if counts is not None else None


def undrafted(load: MeasuredLoad) -> list[Distrust]:
    """That a candidate's engine did not count what it drafted."""
    if load.side != "candidate" or drafted_in(load) is not None:
        return []
    return [_cause("acceptance", load, "the engine does not count drafted and accepted tokens")]


def distrusted(
    loads: Sequence[MeasuredLoad],
    *,
    declared: float | None,
    judged_s: float | None,
    must_count: bool = False,
) -> list[Distrust]:
    """All causes, in the order of measuring.

    Args:
        loads: of one claim.
        declared: hit rate of the workload; None where it declares none.
        judged_s: the shortest time that the claim is about, which the client's own lag is held
            against; None: the median answer of each load.
        must_count: hits must be counted, also where none are declared.
    """
    found = [cause for load in loads for cause in _of_one(load, declared, judged_s, must_count)]
    seen: dict[tuple[str, int], int] = {}
    for load in loads:
        block = seen.setdefault((load.side, load.seed), load.block)
        if block != load.block:
            words = f"the seed of number {block} again: its prompts may be in the cache"
            found.append(_cause("own_cache", load, words))
    return found


def _of_one(
    load: MeasuredLoad, declared: float | None, judged_s: float | None, must_count: bool
) -> Iterator[Distrust]:
    for each in load.disturbances:
        yield _cause(each.kind, load, each.what)
    if (fault := _hit_rate_fault(load, declared, must_count)) is not None:
        yield _cause("hit_rate", load, fault)
    shortest = judged_s if judged_s is not None else _median_answer(load)
    lag = load.client_lag_s
    if lag is None:
        yield _cause("client_lag", load, "how late the client was is not known")
    elif shortest is not None and lag > LARGEST_LAG * shortest:
        words = (
            f"the client was late by {1e3 * lag:.0f} ms, more than a tenth of the "
            f"{1e3 * shortest:.0f} ms that are judged"
        )
        yield _cause("client_lag", load, words)
    try:
        waves = waves_in(load) if load.arrivals == "concurrency" else None
        output_rate(load)
    except NoSteadyPartError as error:
        # Where nothing was answered, that is what is to be said.
        if any(each is None for each in load.requests.error):
            yield _cause("too_short", load, str(error))
    else:
        if waves is not None and waves < FEWEST_WAVES:
            words = f"{waves:.1f} waves of requests in the steady part, {FEWEST_WAVES} are needed"
            yield _cause("too_short", load, words)


def _hit_rate_fault(load: MeasuredLoad, declared: float | None, must_count: bool) -> str | None:
    if declared is None:
        return None
    measured = hit_rate(load)
    if measured is None:
        # Random prompts are new in each load, and need no counter.
        return (
            f"the engine does not count its prefix cache's hits, {declared:.2f} is declared"
            if declared > 0 or must_count
            else None
        )
    if abs(measured - declared) <= HIT_RATE_TOLERANCE:
        return None
    return f"the prefix cache's hit rate was {measured:.2f}, the workload declares {declared:.2f}"


def failures(loads: Sequence[MeasuredLoad]) -> list[Distrust]:
    """Loads with requests that failed: what was not answered has no speed."""
    found = []
    for load in loads:
        errors = [error for error in load.requests.error if error is not None]
        if errors:
            words = f"{len(errors)} of {len(load.requests)} requests failed: {errors[0]}"
            found.append(_cause("failed_requests", load, words))
    return found


def unlike(baseline: MeasuredLoad, candidate: MeasuredLoad) -> list[Distrust]:
    """Two sides of a block that were not asked the same."""
    if baseline.seed == candidate.seed and baseline.prompts_sha256 == candidate.prompts_sha256:
        return []
    return [_cause("unlike", candidate, "the two sides were not asked the same")]


def drifting(last: MeasuredLoad, how: str) -> Distrust:
    """What was measured is not what comes next: its later half is another than its earlier one."""
    return _cause("drift", last, f"{how} in the later half as in the earlier, and went on")


def too_few(load: MeasuredLoad, percentiles: Iterable[int]) -> list[Distrust]:
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


def fewest_requests(percentile: int) -> int:
    """That a percentile is of."""
    return math.ceil(100 / (100 - percentile))


def over_saturated(load: MeasuredLoad) -> bool:
    """Whether requests come faster than they are served: more and more are in flight, and wait.

    Such a load has no steady part: the longer it lasts, the worse its latencies. Both are the
    client's own count, so a server that tells nothing of its queue is watched as well: how many
    are in flight when a request is sent, and its time to first token, both rise from quarter to
    quarter of the steady part and more than double, and of the requests that came in it a tenth is
    left over: a queue that comes and goes is a steady server's. Failed requests are left out.
    """
    import numpy as np

    start, end = window_of(load)
    quarter = (end - start) / 4
    requests = load.requests
    answered = [i for i, error in enumerate(requests.error) if error is None]
    sent = np.array([requests.start_s[i] for i in answered])
    ended = np.sort([requests.end_s[i] or 0.0 for i in answered])
    ttft = np.array([requests.ttft_s[i] or 0.0 for i in answered])
    in_flight = np.searchsorted(np.sort(sent), sent) - np.searchsorted(ended, sent, side="right")
    of_quarters = [
        (sent >= start + number * quarter) & (sent < start + (number + 1) * quarter)
        for number in range(4)
    ]
    if not all(each.any() for each in of_quarters):
        return False
    came = (sent >= start) & (sent < end)
    left = (ended >= start) & (ended < end)
    if came.sum() - left.sum() < LEFT_OVER * came.sum():
        return False
    for values in (in_flight, ttft):
        medians = [float(np.median(values[each])) for each in of_quarters]
        if medians != sorted(medians) or medians[-1] <= GROWTH * medians[0]:
            return False
    return True


def _median_answer(load: MeasuredLoad) -> float | None:
    times = zip(load.requests.start_s, load.requests.end_s, strict=True)
    known = sorted(end - start for start, end in times if end is not None)
    return known[len(known) // 2] if known else None


def _cause(kind: str, load: MeasuredLoad, words: str) -> Distrust:
    return Distrust.model_validate(
        {"kind": kind, "side": load.side, "block": load.block, "words": words}
    )
